"""Hashes of the files of a result and, of weights, of each tensor; loads no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from emberge.errors import CheckpointError
from emberge.files.hashes import file_pieces
from emberge.tensor_files.safetensors_header import TensorSpec, read_header

__all__ = ["FileContent", "contents_of", "file_content"]

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
    def of(cls, plain: Any) -> FileContent | None:
        """Return the content that values of JSON describe; None for values of another kind."""
        if not isinstance(plain, Mapping):
            return None
        tensors = plain.get("tensors", {})
        if not isinstance(plain.get("xxh3"), str) or not isinstance(tensors, Mapping):
            return None
        return cls(int(plain.get("size", -1)), plain["xxh3"], tensors)


def contents_of(folder: Path, *, leave: Sequence[str] = ()) -> dict[str, FileContent]:
    """Return the content of every file below a folder by its name in it, without hidden ones and `leave`."""
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
        return dict(zip(files, pool.map(file_content, files.values()), strict=True))


def file_content(path: Path) -> FileContent:
    """Return a file's hash and, of a sound file of weights, those of its tensors, from one reading."""
    whole, tensors = xxhash.xxh3_128(), _Tensors(_specs(path))
    place = 0
    for piece in file_pieces(path):
        whole.update(piece)
        tensors.see(piece, place)
        place += len(piece)
    return FileContent(place, str(whole.hexdigest()), dict(tensors.found()))


class _Tensors:
    """Hashes of a file's tensors, taken while its bytes pass by from first to last."""

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self._left = sorted(specs, key=lambda spec: spec.offset, reverse=True)
        self._begun: dict[str, Any] = {spec.name: xxhash.xxh3_64() for spec in specs}

    def see(self, piece: memoryview, place: int) -> None:
        end = place + len(piece)
        while self._left and self._left[-1].offset < end:
            spec = self._left[-1]
            last = spec.offset + spec.nbytes
            start = max(spec.offset, place)
            self._begun[spec.name].update(piece[start - place : min(last, end) - place])
            if last > end:
                return
            self._left.pop()

    def found(self) -> Iterator[tuple[str, str]]:
        for name, hasher in self._begun.items():
            yield name, str(hasher.hexdigest())


def _specs(path: Path) -> list[TensorSpec]:
    if path.suffix != _WEIGHTS:
        return []
    try:
        return list(read_header(path)[0].values())
    except CheckpointError:
        return []  # the reader of the header names the problem
