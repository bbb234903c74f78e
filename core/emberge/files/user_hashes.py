"""The user's table of hashes of large files, which outlives every OUT: a model is read once a machine.

A file is known by device, inode, size and times, so it may have any number of names; the table holds no path.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from emberge.files.atomic import make_folder, write_text
from emberge.files.locks import wait_for_lock
from emberge.files.ours import NotOursError, require_ours
from emberge.files.strangers import read_json

__all__ = ["LARGE", "UserHashes"]

SWITCH = "EMBERGE_HASH_CACHE"
"""Environment variable: with `never` nothing is remembered, nor looked up."""

LARGE = 1 << 20
"""Bytes from which on a file is remembered; smaller ones are hashed at once."""

ENTRIES = 4096
"""Files that are remembered; of more, those remembered first are forgotten."""


class UserHashes:
    """Hashes by a file's status, kept in the user's cache folder for all runs.

    A folder that cannot be used, as it is another user's, costs only time, and so does a damaged table.
    """

    def __init__(self) -> None:
        self.path = _place()
        self._known: dict[str, str] | None = None
        self._new: dict[str, str] = {}

    def find(self, status: os.stat_result) -> str | None:
        """Return the hash of the file of this status; None when it is not known."""
        if self.path is None or status.st_size < LARGE:
            return None
        if self._known is None:
            self._known = _read(self.path)
        return self._known.get(_key(status))

    def learn(self, status: os.stat_result, digest: str) -> None:
        """Remember the hash of a file that had this status before and after it was read."""
        if status.st_size >= LARGE:
            self._new[_key(status)] = digest

    def save(self) -> None:
        """Add what was learned to the table."""
        if self.path is None or not self._new:
            return
        with suppress(OSError, NotOursError):
            make_folder(self.path.parent)
            require_ours(self.path.parent)
            with wait_for_lock(self.path.with_suffix(".lock")):  # other runs save theirs too
                known = list({**_read(self.path), **self._new}.items())
                text = json.dumps(dict(known[-ENTRIES:]))
                write_text(self.path, text, durable=False, shared=True)
        self._new = {}


def _place() -> Path | None:
    if os.environ.get(SWITCH) == "never":
        return None
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home
        return None
    return cache / "emberge" / "hashes.json" if cache.is_absolute() else None


def _key(status: os.stat_result) -> str:
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return ":".join(map(str, (status.st_dev, status.st_ino, status.st_size, *times)))


def _read(path: Path) -> dict[str, str]:
    try:
        for one in (path.parent, path):
            require_ours(one)
        found: Any = read_json(path)
    except (OSError, ValueError, NotOursError):
        return {}
    if not isinstance(found, Mapping):
        return {}
    return {key: digest for key, digest in found.items() if _is_digest(digest)}


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 32
