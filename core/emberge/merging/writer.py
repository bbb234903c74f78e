"""A checkpoint's weight files, written in place: headers first, pieces in any order."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from emberge.errors import CheckpointError
from emberge.merging.checkpoint import WEIGHTS, total_bytes
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
    modules of a SentenceTransformers folder); "" is the trunk's. With files of the same headers already
    there, as after a kill, what they hold stays.
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
        self.resumed = True
        parts = dict(parts or {"": ""})
        for prefix, group in _by_part(specs, parts).items():
            self._open_part(folder / parts[prefix], prefix, group, parse_size(max_shard_size))

    def write(self, name: str, start: int, piece: Tensor) -> None:
        """Put a contiguous CPU piece at element `start` of a tensor; from any thread, in any order."""
        handle, offset, itemsize = self._places[name]
        left, place = bytes_of(piece), offset + start * itemsize
        try:
            while left:
                done = os.pwrite(handle, left, place)
                left, place = left[done:], place + done
        except OSError as error:
            raise CheckpointError(
                f"{self.folder}: {name} could not be written ({error.strerror}); make room and run again"
            ) from error

    def sync(self) -> None:
        """Have all that was written on the disk."""
        for handle in self._handles:
            os.fdatasync(handle)

    def finish(self) -> None:
        """Write the indices and have everything on the disk."""
        for path, content in self._indices.items():
            path.write_text(content)
        self.sync()
        self.close()

    def close(self) -> None:
        """Close the files as they are."""
        while self._handles:
            os.close(self._handles.pop())

    def _open_part(self, folder: Path, prefix: str, specs: list[TensorSpec], limit: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        shards = _shards(specs, limit)
        stem = WEIGHTS.removesuffix(".safetensors")
        weights: dict[str, str] = {}
        for number, shard in enumerate(shards, 1):
            file = f"{stem}-{number:05}-of-{len(shards):05}.safetensors"
            name = WEIGHTS if len(shards) == 1 else file
            weights |= dict.fromkeys((s.name.removeprefix(prefix) for s in shard), name)
            self._open_shard(folder / name, prefix, shard)
        if len(shards) > 1:
            index = {"metadata": {"total_size": total_bytes(specs)}, "weight_map": weights}
            self._indices[folder / f"{WEIGHTS}.index.json"] = json.dumps(index, indent=2) + "\n"

    def _open_shard(self, path: Path, prefix: str, shard: list[TensorSpec]) -> None:
        named = [s.renamed(s.name.removeprefix(prefix)) for s in shard]
        opening, places = encode_header(named, self._metadata)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._handles.append(handle)
        size = len(opening) + total_bytes(shard)
        if os.fstat(handle).st_size != size or os.pread(handle, len(opening), 0) != opening:
            self.resumed = False
            os.ftruncate(handle, 0)
            os.pwrite(handle, opening, 0)
            os.ftruncate(handle, size)
        for spec, old in zip(named, shard, strict=True):
            self._places[old.name] = (handle, places[spec.name], spec.itemsize)

    def __del__(self) -> None:
        with suppress(OSError):
            self.close()


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
