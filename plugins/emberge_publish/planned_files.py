"""Files of a publication beside those of its repository: new, changed, the same, or to be removed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from emberge_publish.credentials import Content
from emberge_publish.hub_repository import FileOnHub, Remote

# Files that hubs write into a repository themselves.
_OF_THE_HUB = (".gitattributes",)
State = Literal["new", "changed", "same", "removed"]


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """File of the repository: its path, its bytes, and how it compares with what is there."""

    path: str
    size: int
    state: State


def plan_files(files: Mapping[str, Content], remote: Remote) -> list[PlannedFile]:
    """Return every file with its state beside what the repository has, and those that only it has."""
    found = [_planned(path, content, remote) for path, content in files.items()]
    left = [path for path in remote.files if path not in files and path not in _OF_THE_HUB]
    return found + [PlannedFile(path, remote.files[path].size, "removed") for path in left]


def _planned(path: str, content: Content, remote: Remote) -> PlannedFile:
    size = len(content) if isinstance(content, bytes) else content.stat().st_size
    there = remote.files.get(path)
    if there is None:
        return PlannedFile(path, size, "new")
    same = there.size == size and _is_same(content, size, there)
    return PlannedFile(path, size, "same" if same else "changed")


def _is_same(content: Content, size: int, there: FileOnHub) -> bool:
    """Compare by the hash that the hub has: of the bytes for a large file, git's for others."""
    large = there.sha256 is not None
    digest = hashlib.sha256() if large else hashlib.sha1(usedforsecurity=False)
    if not large:
        digest.update(f"blob {size}\0".encode())
    if isinstance(content, bytes):
        digest.update(content)
    else:
        with content.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest() == (there.sha256 or there.blob)


def shown_size(size: float) -> str:
    """Return a number of bytes in three digits and a decimal unit."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
