"""Removal of whatever an OUT still has of forgotten rows: old results, stored rows, and caches of texts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from emberge.data import KeyList, StoredDataset
from emberge.errors import CheckpointError
from emberge.files import lock_folder
from emberge.results import OutFolder, find_leftovers, remove_leftovers

# Caches in an OUT's store that have neither texts of rows nor vectors of them.
_CACHES_WITHOUT_ROWS = ("scores", "costs", "given", "hashes.json", "hashes.lock")


def remove_forgotten(out: Path, keys: KeyList) -> None:
    """Remove old results, stored rows of forgotten keys, and caches of texts.

    Old results may have been made of forgotten rows. Caches of texts and vectors, which the next run fills
    again, are removed whole. Scores, which are numbers, stay.

    Raises:
        OutInUseError: if a run works in `out`.
    """
    remove_leftovers(find_leftovers(out))
    place = OutFolder(out)
    with lock_folder(place.lock):
        for path in _find_caches(place.store, keys):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _find_caches(store: Path, keys: KeyList) -> Iterator[Path]:
    """Yield the files and folders of the store that may have forgotten rows."""
    used_media: set[Path] = set()
    for folder in sorted((store / "examples").glob("*")):
        stored_keys = StoredDataset.read_key_hashes(folder)
        if stored_keys is None or any(digest in keys for digest in stored_keys):
            yield folder
        else:
            used_media.update(_list_media(folder))
    for path in sorted((store / "media").rglob("*")):
        if path.is_file() and path.resolve() not in used_media:
            yield path
    for path in sorted(store.iterdir()):
        if path.name not in (*_CACHES_WITHOUT_ROWS, "examples", "media"):
            yield path


def _list_media(folder: Path) -> Iterator[Path]:
    """Yield the files of the images and clips in stored rows."""
    path = folder / "media.json"
    if not path.is_file():
        return
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
        yield from (Path(name).resolve() for name, *_ in listed)
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); remove {folder}") from None
