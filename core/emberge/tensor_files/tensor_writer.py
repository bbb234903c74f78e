"""A checkpoint's weight files, written in place: headers first, pieces in any order."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from emberge.files import make_folder, sync, write_text, writing
from emberge.tensor_files.content_hashes import (
    EarlyPieces,
    HashThread,
    UnorderedHasher,
    find_current_notes,
)
from emberge.tensor_files.safetensors_header import WEIGHTS, TensorSpec, encode_header
from emberge.tensor_files.tensor_reader import view_bytes
from emberge.tensor_files.write_queue import QUEUE, DirectFile, FilledBuffer, WriteQueue
from emberge.wording import parse_size

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

DIRECT_BYTES = 1 << 20
"""Smallest size in bytes of a tensor that is written with direct I/O; below it, the cache is as fast."""
HASHED_BYTES = 1 << 20
"""Smallest size in bytes of a file that is hashed while it is written; reading a smaller one is quicker."""


class TensorWriter:
    """A writer of tensors, all known beforehand, into safetensors files of at most `max_shard_size` bytes.

    `parts` maps a prefix of names to the subfolder with those tensors without the prefix (the modules of a
    SentenceTransformers folder); "" is the trunk's. `resumed` is True if all files exist with the same
    headers, as after a kill; their content is kept. No file is changed before `begin`, so that the journal of
    older files can be removed before new files replace them. Inside `noting_contents`, large files are
    hashed while they are written.
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
        # For each tensor the number of its shard, and where it is stored in it.
        self._stored: dict[str, tuple[int, TensorSpec]] = {}
        self._files: list[DirectFile] = []
        self._queue: WriteQueue | None = None
        self._reserved: set[str] = set()
        self._notes = find_current_notes()
        self._hashing: HashThread | None = None
        self._hashes: list[UnorderedHasher] = []
        self._indices: dict[Path, str] = {}
        self._shards: list[_Shard] = []
        parts = dict(parts or {"": ""})
        for prefix, group in _group_by_part(specs, parts).items():
            self._plan_shards(folder / parts[prefix], prefix, group, parse_size(max_shard_size))
        self.resumed = all(shard.is_begun() for shard in self._shards)

    def begin(self, queue: int = QUEUE) -> None:
        """Open the files, and create those that do not have the right header and length.

        At most `queue` bytes of pieces wait to be written.

        Raises:
            UnwrittenError: if the disk cannot be written.
        """
        with writing(self.folder, "the weights"):
            for shard in self._shards:
                make_folder(shard.path.parent)
                begun = shard.is_begun()
                self._files.append(DirectFile(shard.path))
                if not begun:
                    shard.create(self._files[-1])
            for folder in {shard.path.parent for shard in self._shards}:
                sync(folder)  # tensors that a journal calls done are found again by these names
        self._queue = WriteQueue(queue)
        if self._notes is not None and any(shard.size >= HASHED_BYTES for shard in self._shards):
            self._hashing, early = HashThread(), EarlyPieces()
            self._hashes = [
                UnorderedHasher(file, shard.opening, self._queue.release, early)
                for file, shard in zip(self._files, self._shards, strict=True)
            ]

    def write(self, name: str, start: int, piece: Tensor | np.ndarray) -> None:
        """Queue a contiguous piece on the CPU to be written at element `start` of a tensor, from any thread.

        The piece is copied, and written later.

        Raises:
            UnwrittenError: if writing an earlier piece has failed.
        """
        assert self._queue is not None
        _, spec = self._stored[name]
        offset = spec.offset + start * spec.itemsize
        self._queue.put(view_bytes(piece), offset, functools.partial(self._write_piece, name))

    def run_after_writes(self, work: Callable[[], None]) -> None:
        """Run `work` on the queue's thread after everything queued so far is in the files."""
        assert self._queue is not None
        self._queue.call_after_writes(work)

    def sync(self) -> None:
        """Wait until the files' content is on the disk."""
        with writing(self.folder, "the weights"):
            for file in self._files:
                file.sync()

    def finish(self) -> None:
        """Write the index files, wait until everything is on the disk, and close the files."""
        assert self._queue is not None
        self._queue.drain()
        with writing(self.folder, "the index"):
            for path, content in self._indices.items():
                write_text(path, content)
        self.sync()
        self._note_contents()
        self.close()

    def close(self) -> None:
        """Finish the queued writes, and close the files."""
        if self._queue is not None:
            self._queue.close()
        if self._hashing is not None:
            self._hashing.close()
        while self._files:
            self._files.pop().close()

    def _write_piece(self, name: str, piece: FilledBuffer) -> None:
        """Write a filled buffer on the queue's thread, then hash or release it."""
        shard, spec = self._stored[name]
        file = self._files[shard]
        with writing(self.folder, name):
            if spec.nbytes < DIRECT_BYTES:
                file.write(piece.data, piece.position)
            else:
                if name not in self._reserved:
                    self._reserved.add(name)
                    file.reserve(spec.offset, spec.nbytes)
                file.write_direct(piece.data, piece.position)
        if self._hashing is not None:
            self._hashing.queue_piece(self._hashes[shard], piece)
        elif self._queue is not None:
            self._queue.release(piece)

    def _note_contents(self) -> None:
        """Add the known hashes of the files to the notes."""
        if self._notes is None or self._hashing is None:
            return
        self._hashing.close()
        for shard, hashes in zip(self._shards, self._hashes, strict=True):
            content = hashes.finish(shard.size)
            if content is not None:
                self._notes.note(shard.path, content)

    def _plan_shards(self, folder: Path, prefix: str, specs: list[TensorSpec], limit: int) -> None:
        shards = _split_shards(specs, limit)
        stem = WEIGHTS.removesuffix(".safetensors")
        weights: dict[str, str] = {}
        for number, shard in enumerate(shards, 1):
            file = f"{stem}-{number:05}-of-{len(shards):05}.safetensors"
            name = WEIGHTS if len(shards) == 1 else file
            named = [s.with_name(s.name.removeprefix(prefix)) for s in shard]
            weights |= dict.fromkeys((s.name for s in named), name)
            opening, offsets = encode_header(named, self._metadata)
            placed = [replace(spec, offset=offsets[spec.name]) for spec in named]
            for spec in placed:
                self._stored[prefix + spec.name] = (len(self._shards), spec)
            size = len(opening) + sum(spec.nbytes for spec in shard)
            self._shards.append(_Shard(folder / name, opening, size, placed))
        if len(shards) > 1:
            index = {
                "metadata": {"total_size": sum(spec.nbytes for spec in specs)},
                "weight_map": weights,
            }
            self._indices[folder / f"{WEIGHTS}.index.json"] = json.dumps(index, indent=2) + "\n"

    def __del__(self) -> None:
        with suppress(OSError):
            self.close()


@dataclass(frozen=True, slots=True)
class _Shard:
    """One file: its path, its header's bytes, its length, and its tensors."""

    path: Path
    opening: bytes
    size: int
    specs: Sequence[TensorSpec]

    def is_begun(self) -> bool:
        """Return whether the file exists with this header and length, as after a kill."""
        try:
            if self.path.stat().st_size != self.size:
                return False
            with self.path.open("rb") as file:
                return file.read(len(self.opening)) == self.opening
        except OSError:
            return False

    def create(self, file: DirectFile) -> None:
        """Write the header into the open file and set its length."""
        os.ftruncate(file.handle, 0)
        file.write(memoryview(self.opening), 0)
        os.ftruncate(file.handle, self.size)


def _group_by_part(
    specs: Sequence[TensorSpec], parts: Mapping[str, str]
) -> dict[str, list[TensorSpec]]:
    grouped: dict[str, list[TensorSpec]] = {}
    for spec in specs:
        prefix = max((p for p in parts if spec.name.startswith(p)), key=len)
        grouped.setdefault(prefix, []).append(spec)
    return grouped


def _split_shards(specs: Sequence[TensorSpec], limit: int) -> list[list[TensorSpec]]:
    shards: list[list[TensorSpec]] = [[]]
    filled = 0
    for spec in specs:
        if shards[-1] and filled + spec.nbytes > limit:
            shards.append([])
            filled = 0
        shards[-1].append(spec)
        filled += spec.nbytes
    return shards
