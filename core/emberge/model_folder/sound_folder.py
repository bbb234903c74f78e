"""Soundness of model folders: regular files of bounded size, and no link that leads out.

A folder from outside may link a file of a model to a private one, which a result would then publish. A link
may lead inside the model's own folder, or from a snapshot of the hub's cache into that cache's blobs. The
folder itself may be a link: whoever named it meant what it leads to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from emberge.errors import CheckpointError
from emberge.files import JSON_LIMIT, require_inside, require_regular
from emberge.model_folder.file_table import rule_of


def require_sound(place: Path, folder: Path) -> None:
    """Make sure that the files of a model in `place` may be read and copied.

    `place` is the model's `folder` or one in it. Files that are none of a model are not looked at.

    Raises:
        UnsoundFileError: for a link out of the model's folder, a FIFO, a device or a JSON file that is too
            large, under the name of a model's file.
        CheckpointError: for a folder that may not be read.
    """
    roots = _roots(folder)
    require_inside(place, *roots)
    try:
        with os.scandir(place) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        raise CheckpointError(f"{place}: cannot be read ({error.strerror})") from None
    for entry in entries:
        if _is_of_model(entry):
            _require_sound_file(entry, roots)


def real_file(path: Path, folder: Path) -> Path:
    """Return the real path of a file of the model in `folder`.

    Raises:
        UnsoundFileError: for a link that leads out of the model's folder.
    """
    return require_inside(path, *_roots(folder))


def _roots(folder: Path) -> list[Path]:
    """Return the folders that links may lead to: the model's, and the blobs of the cache that it is in."""
    real = folder.resolve()
    return [real, *_blobs(real)]


def _blobs(real: Path) -> Iterator[Path]:
    """Yield the blobs' folder for a snapshot in the hub's cache: `models--x--y/snapshots/REVISION`."""
    for parent in real.parents:
        blobs = parent.parent / "blobs"
        cached = parent.name == "snapshots" and parent.parent.name.startswith("models--")
        if cached and blobs.is_dir() and not blobs.is_symlink():
            yield blobs


def _is_of_model(entry: os.DirEntry[str]) -> bool:
    """Return whether a result has a copy of such a file, or its content decides embeddings."""
    rule = rule_of(entry.name)
    return rule is not None and (rule.copied or rule.hashed != "no")


def _require_sound_file(entry: os.DirEntry[str], roots: list[Path]) -> None:
    path = Path(entry.path)
    if entry.is_symlink():
        require_inside(path, *roots)
    try:
        if entry.is_dir():
            return
        limit = JSON_LIMIT if entry.name.endswith(".json") else None
        require_regular(path, entry.stat(), limit=limit)
    except OSError:
        return  # a link to nothing or to itself is no file
