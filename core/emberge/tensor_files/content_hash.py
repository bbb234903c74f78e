"""Hashes of the files of a result and, of weights, of each tensor; loads no torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from emberge.errors import CheckpointError
from emberge.hashes import file_pieces
from emberge.tensor_files.safetensors_header import TensorSpec, read_header

_WEIGHTS = ".safetensors"


@dataclass(frozen=True, slots=True)
class FileContent:
    """Size and XXH3 hash of a file (128 bits in hex), and of each tensor in it (64 bits, in hex).

    XXH3 tells contents apart at the speed of reading; it does not defend against forgery.
    """

    size: int
    hash: str
    tensors: Mapping[str, str] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return the content as values of JSON."""
        found: dict[str, Any] = {"size": self.size, "xxh3": self.hash}
        return {**found, "tensors": dict(self.tensors)} if self.tensors else found

    @classmethod
    def of_file(cls, path: Path) -> FileContent:
        """Return a file's hash and, of a sound file of weights, those of its tensors, from one reading."""
        hasher = ContentHasher(_read_specs(path))
        for piece in file_pieces(path):
            hasher.see(piece)
        return hasher.content()

    @classmethod
    def of_bytes(cls, content: bytes) -> FileContent:
        """Return the size and the hash of a file's bytes."""
        hasher = ContentHasher(())
        hasher.see(memoryview(content))
        return hasher.content()

    @classmethod
    def from_plain(cls, plain: Any) -> FileContent | None:
        """Return the content that values of JSON describe; None for values of another kind."""
        if not isinstance(plain, Mapping):
            return None
        tensors = plain.get("tensors", {})
        if not isinstance(plain.get("xxh3"), str) or not isinstance(tensors, Mapping):
            return None
        return cls(int(plain.get("size", -1)), plain["xxh3"], tensors)


def contents_of(
    folder: Path,
    *,
    leave: Sequence[str] = (),
    known: Callable[[Path], FileContent | None] = lambda _: None,
) -> dict[str, FileContent]:
    """Return the content of every file below a folder by its name in it, without hidden ones and `leave`.

    A file whose content is `known` is not read.
    """
    files = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
    files = {
        name: path
        for name, path in files.items()
        if name not in leave and not any(part.startswith(".") for part in name.split("/"))
    }
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        found = pool.map(lambda path: known(path) or FileContent.of_file(path), files.values())
        return dict(zip(files, found, strict=True))


class ContentHasher:
    """Hashes of a file and of its tensors, taken while its bytes pass by from first to last.

    `specs` are the tensors with their offsets in the file.
    """

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self.seen = 0
        self._whole = xxhash.xxh3_128()
        self._left = sorted(specs, key=lambda spec: spec.offset, reverse=True)
        self._tensors: dict[str, Any] = {spec.name: xxhash.xxh3_64() for spec in specs}

    def see(self, piece: memoryview) -> None:
        """Take in the bytes that follow those `seen`."""
        place, end = self.seen, self.seen + len(piece)
        self.seen = end
        self._whole.update(piece)
        while self._left and self._left[-1].offset < end:
            spec = self._left[-1]
            last = spec.offset + spec.nbytes
            start = max(spec.offset, place)
            self._tensors[spec.name].update(piece[start - place : min(last, end) - place])
            if last > end:
                return
            self._left.pop()

    def content(self) -> FileContent:
        """Return the content of the file that ends here."""
        tensors = {name: str(hasher.hexdigest()) for name, hasher in self._tensors.items()}
        return FileContent(self.seen, str(self._whole.hexdigest()), tensors)


def _read_specs(path: Path) -> list[TensorSpec]:
    if path.suffix != _WEIGHTS:
        return []
    try:
        return list(read_header(path)[0].values())
    except CheckpointError:
        return []  # the reader of the header names the problem
