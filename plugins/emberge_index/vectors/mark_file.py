"""A small JSON file beside a file of vectors, which tells whose vectors these are: the file's mark.

A safetensors or parquet file has its mark inside. For npy and faiss files, `NAME.emberge.json` names the
model and the side of the vectors, and has the size and a hash of the file's beginning and end. A mark whose
size or hash is not that of the file, for example because the file was written again by other means, is
ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

from emberge import RecipeError
from emberge.files import UnsoundFileError, open_regular, read_json, write_text

from emberge_index.vectors.pieces import RewritePlan, read_mark_values

SUFFIX = ".emberge.json"
FORMATS_WITHOUT_MARK = (".npy", ".faiss", ".index")
# Bytes that are hashed at each end of a file. Hashing the whole of a large index would take too long.
_HASHED = 1 << 16
# Bytes of a mark, at most.
_LONGEST = 1 << 16


def locate_mark_file(vectors: Path) -> Path:
    """Return the place of the mark beside a file of vectors."""
    return vectors.with_name(vectors.name + SUFFIX)


def require_new_mark(vectors: Path) -> None:
    """Make sure that the mark of a new file of vectors replaces nothing but an older mark.

    Raises:
        RecipeError: if a file of the mark's name exists that is no mark.
    """
    path = locate_mark_file(vectors)
    if vectors.suffix not in FORMATS_WITHOUT_MARK or not os.path.lexists(path):
        return
    try:
        mark = read_json(path, limit=_LONGEST)
    except (OSError, ValueError, UnsoundFileError):
        mark = None
    if not isinstance(mark, dict) or not isinstance(mark.get("file"), str):
        raise RecipeError(
            f"{path}: exists already and is no mark of vectors; remove it or choose another --out"
        )


def write_mark_file(vectors: Path, content: Path, mark: str) -> None:
    """Write the mark beside `vectors`, which the file `content` becomes; do nothing for other formats.

    Raises:
        UnwrittenError: if the disk is full or broken.
    """
    if vectors.suffix in FORMATS_WITHOUT_MARK:
        record = {**json.loads(mark), "file": _identify_file(content)}
        write_text(locate_mark_file(vectors), json.dumps(record, sort_keys=True) + "\n")


def add_mark(plan: RewritePlan) -> RewritePlan:
    """Return the plan with the model and the side that a mark beside its file names."""
    try:
        mark = read_json(locate_mark_file(plan.path), limit=_LONGEST)
        if mark["file"] != _identify_file(plan.path):
            return plan
    except (OSError, ValueError, KeyError, TypeError, UnsoundFileError):
        return plan
    fingerprint, side = read_mark_values(mark)
    return replace(plan, fingerprint=fingerprint, side=side)


def _identify_file(path: Path) -> str:
    """Return the size of a file and a hash of its first and last bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256(file.read(_HASHED))
        file.seek(max(0, size - _HASHED))
        digest.update(file.read(_HASHED))
    return f"{size} {digest.hexdigest()}"
