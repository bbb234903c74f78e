"""A checkpoint's weight files, written in place: headers first, pieces in any order."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from emberge.errors import CheckpointError
from emberge.merging.checkpoint import WEIGHTS, total_bytes
from emberge.merging.disk import unwritten, writing
from emberge.merging.headers import TensorSpec, encode_header
from emberge.merging.reader import bytes_of

__all__ = ["TensorWriter", "parse_size"]

_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_size(size: str | int) -> int:
    """Bytes of `5GB`, `200MB`, `1GiB` or a plain number.

    Raises:
        CheckpointError: for anything else.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", str(size).strip())
    if not found or found[2].upper() not in _UNITS or float(found[1]) <= 0:
        raise CheckpointError(f"'{size}' is no size; write it like 5GB, 500MB or 1GiB")
    return int(float(found[1]) * _UNITS[found[2].upper()])


class TensorWriter:
    """Writes tensors, all known beforehand, into safetensors files of at most `max_shard_size` bytes.

    `parts` maps a prefix of names to the subfolder that holds those tensors without the prefix (the
    modules of a SentenceTransformers folder); "" is the trunk's. `resumed` says that files of the same
    headers are all there, as after a kill; what they hold stays. Nothing is touched before `begin`, so
    that a note of what they held can be taken back before new files take their place.
    """

    def __init__(
        self,
        folder: Path,
        specs: Sequence[TensorSpec],
        metadata: Mapping[str, str],
        max_shard_size: str | int = "5GB",
        parts: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self._metadata = {"format": "pt", **metadata}
        self._places: dict[str, tuple[int, int, int]] = {}
        self._handles: list[int] = []
        self._indices: dict[Path, str] = {}
        self._shards: list[_Shard] = []
        parts = dict(parts or {"": ""})
        for prefix, group in _by_part(specs, parts).items():
            self._lay_out(folder / parts[prefix], prefix, group, parse_size(max_shard_size))
        self.resumed = all(shard.stands() for shard in self._shards)

    def begin(self) -> None:
        """Open the files, and make those that are not there as they should be.

        Raises:
            UnwrittenError: when the disk does not let us.
        """
        with writing(self.folder, "the weights"):
            for shard in self._shards:
                shard.path.parent.mkdir(parents=True, exist_ok=True)
                stands = shard.stands()
                self._handles.append(os.open(shard.path, os.O_RDWR | os.O_CREAT, 0o644))
                if not stands:
                    shard.make(self._handles[-1])

    def write(self, name: str, start: int, piece: Tensor) -> None:
        """Put a contiguous CPU piece at element `start` of a tensor; from any thread, in any order."""
        shard, offset, itemsize = self._places[name]
        handle = self._handles[shard]
        left, place = bytes_of(piece), offset + start * itemsize
        try:
            while left:
                done = os.pwrite(handle, left, place)
                left, place = left[done:], place + done
        except OSError as error:
            raise unwritten(self.folder, name, error) from error

    def sync(self) -> None:
        """Have all that was written on the disk."""
        with writing(self.folder, "the weights"):
            for handle in self._handles:
                os.fdatasync(handle)

    def finish(self) -> None:
        """Write the indices and have everything on the disk."""
        with writing(self.folder, "the index"):
            for path, content in self._indices.items():
                path.write_text(content, encoding="utf-8")
        self.sync()
        self.close()

    def close(self) -> None:
        """Close the files as they are."""
        while self._handles:
            os.close(self._handles.pop())

    def _lay_out(self, folder: Path, prefix: str, specs: list[TensorSpec], limit: int) -> None:
        shards = _shards(specs, limit)
        stem = WEIGHTS.removesuffix(".safetensors")
        weights: dict[str, str] = {}
        for number, shard in enumerate(shards, 1):
            file = f"{stem}-{number:05}-of-{len(shards):05}.safetensors"
            name = WEIGHTS if len(shards) == 1 else file
            named = [s.renamed(s.name.removeprefix(prefix)) for s in shard]
            weights |= dict.fromkeys((s.name for s in named), name)
            opening, places = encode_header(named, self._metadata)
            for spec in named:
                place = len(self._shards), places[spec.name], spec.itemsize
                self._places[prefix + spec.name] = place
            self._shards.append(_Shard(folder / name, opening, len(opening) + total_bytes(shard)))
        if len(shards) > 1:
            index = {"metadata": {"total_size": total_bytes(specs)}, "weight_map": weights}
            self._indices[folder / f"{WEIGHTS}.index.json"] = json.dumps(index, indent=2) + "\n"

    def __del__(self) -> None:
        with suppress(OSError):
            self.close()


@dataclass(frozen=True, slots=True)
class _Shard:
    """One file: where it is, how it opens, and how long it is."""

    path: Path
    opening: bytes
    size: int

    def stands(self) -> bool:
        """Whether the file is there with this header, as after a kill."""
        try:
            if self.path.stat().st_size != self.size:
                return False
            with self.path.open("rb") as file:
                return file.read(len(self.opening)) == self.opening
        except OSError:
            return False

    def make(self, handle: int) -> None:
        """Give the open file its header and its length."""
        os.ftruncate(handle, 0)
        left, place = memoryview(self.opening), 0
        while left:  # a disk that is nearly full takes a part
            done = os.pwrite(handle, left, place)
            left, place = left[done:], place + done
        os.ftruncate(handle, self.size)


def _by_part(specs: Sequence[TensorSpec], parts: Mapping[str, str]) -> dict[str, list[TensorSpec]]:
    grouped: dict[str, list[TensorSpec]] = {}
    for spec in specs:
        prefix = max((p for p in parts if spec.name.startswith(p)), key=len)
        grouped.setdefault(prefix, []).append(spec)
    return grouped


def _shards(specs: Sequence[TensorSpec], limit: int) -> list[list[TensorSpec]]:
    shards: list[list[TensorSpec]] = [[]]
    filled = 0
    for spec in specs:
        if shards[-1] and filled + spec.nbytes > limit:
            shards.append([])
            filled = 0
        shards[-1].append(spec)
        filled += spec.nbytes
    return shards
