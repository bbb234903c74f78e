"""The check of a finished result before it is taken: its owner, and its files as `artifact.json` has them.

A result that another user put into OUT is refused by its owner, as it could record the hashes of whatever
it holds. In our own the recorded hashes find what was changed, lost or added since, by hand or by a disk.
They cost little: a hash is remembered with the size and the times of its file, of which no program can choose
that of its last change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from emberge.errors import CheckpointError
from emberge.files import read_json, require_tree_ours
from emberge.hashes import HashCache
from emberge.model_folder import hashed_files
from emberge.recipes.folder.provenance import CHANGING
from emberge.recipes.folder.run_folder import ARTIFACT
from emberge.tensor_files import FileContent
from emberge.wording import join_some, printable


class UnsoundResultError(CheckpointError):
    """A finished result whose files are not those that its step left."""


def require_sound_result(folder: Path, hashes: HashCache | None = None) -> None:
    """Make sure that a finished result is ours and that its files are those that its step left.

    A result without artifact.json has nothing to compare, and passes; its README.md may change.

    Raises:
        NotOursError: when another user made the folder or something in it.
        UnsoundResultError: for a file that is missing, is a link or has another content, and for one of a
            model that was added.
    """
    folder = folder.resolve()
    require_tree_ours(folder, links="pass")
    if not (folder / ARTIFACT).is_file():
        return
    try:
        record = read_json(folder / ARTIFACT)
        listed = record["files"]
        wrong = list(_differences(folder, record, listed, hashes or HashCache()))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        wrong = [f"{ARTIFACT} ({printable(error)})"]
    if wrong:
        raise UnsoundResultError(
            f"{printable(folder)}: not as its step left it: {join_some(wrong)}; put that right, or "
            "remove the folder to have the step run again"
        )


def _differences(
    folder: Path, record: Mapping[str, Any], listed: Mapping[str, Any], hashes: HashCache
) -> Iterator[str]:
    """Yield each file that is not as it was published, with what is wrong."""
    for name, entry in listed.items():
        path, known = folder / name, FileContent.from_plain(entry)
        if name in CHANGING:
            continue
        if known is None or ".." in path.parts:
            yield f"{ARTIFACT} (its entry of {printable(name)})"
        elif path.is_symlink() or not path.is_file():
            yield f"{printable(name)} is missing"
        elif path.stat().st_size != known.size or hashes.of(path) != known.hash:
            yield f"{printable(name)} was changed"
    for path in hashed_files(folder) if record.get("kind") == "model" else ():
        name = path.relative_to(folder).as_posix()
        if name not in listed and name not in CHANGING and path.suffix != ".txt":  # notes of people
            yield f"{printable(name)} was added"
