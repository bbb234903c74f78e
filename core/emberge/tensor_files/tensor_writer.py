"""A checkpoint's weight files, written in place: headers first, pieces in any order."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from emberge.files import make_folder, sync, write_text, writing
from emberge.hashes import WRITERS_CACHE
from emberge.tensor_files.content_hashes import EarlyPieces, HashThread, UnorderedHasher
from emberge.tensor_files.safetensors_header import (
    SHARD_BYTES,
    WEIGHTS_FILE,
    TensorSpec,
    encode_header,
)
from emberge.tensor_files.tensor_reader import view_bytes
from emberge.tensor_files.write_queue import QUEUE_BYTES, DirectFile, FilledBuffer, WriteQueue

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

DIRECT_BYTES = 1 << 20
"""Smallest size in bytes of a tensor that is written with direct I/O; below it, the cache is as fast."""
HASHED_BYTES = 1 << 20
"""Smallest size in bytes of a file that is hashed while it is written; reading a smaller one is quicker."""


@dataclass(frozen=True, slots=True)
class _Shard:
    """One file: its path, its header's bytes and its length."""

    path: Path
    opening: bytes
    size: int
    is_begun: bool
    """True if the file exists with this header and length, as after a kill."""


class TensorWriter:
    """A writer of tensors, all known beforehand, into safetensors files of at most `max_shard_size` bytes.

    `folder_by_prefix` maps a prefix of names to the subfolder that gets those tensors, without the prefix (a
    module of a SentenceTransformers folder); "" is the trunk's. `resumed` is True if all files exist with the
    same headers, as after a kill; their content is kept. No file is changed before `begin`, so that the
    journal of older files can be removed before new files replace them. Inside `noting_hashes`, large files
    are hashed while they are written.
    """

    def __init__(
        self,
        folder: Path,
        specs: Sequence[TensorSpec],
        metadata: Mapping[str, str],
        max_shard_size: int = SHARD_BYTES,
        folder_by_prefix: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self._metadata = {"format": "pt", **metadata}
        # For each tensor the number of its shard, and where it is stored in it.
        self._stored: dict[str, tuple[int, TensorSpec]] = {}
        self._files: list[DirectFile] = []
        self._queue: WriteQueue | None = None
        self._reserved: set[str] = set()
        self._hash_cache = WRITERS_CACHE.get()
        self._hashing: HashThread | None = None
        self._hashers: list[UnorderedHasher] = []
        self._indices: dict[Path, str] = {}
        self._shards: list[_Shard] = []
        folder_by_prefix = folder_by_prefix or {"": ""}
        files_by_prefix = _divide_into_files(specs, folder_by_prefix, max_shard_size)
        for prefix, tensors_by_file in files_by_prefix.items():
            self._plan_shards(folder / folder_by_prefix[prefix], prefix, tensors_by_file)
        self.resumed = all(shard.is_begun for shard in self._shards)

    def begin(self, queue_bytes: int = QUEUE_BYTES) -> None:
        """Open the files, and create those that do not have the right header and length.

        At most `queue_bytes` of pieces wait to be written.

        Raises:
            UnwrittenError: if the disk cannot be written.
        """
        with writing(self.folder, "the weights"):
            for shard in self._shards:
                make_folder(shard.path.parent)
                file = DirectFile(shard.path)
                self._files.append(file)
                if not shard.is_begun:
                    os.ftruncate(file.handle, 0)
                    file.write(memoryview(shard.opening), 0)
                    os.ftruncate(file.handle, shard.size)
            for folder in {shard.path.parent for shard in self._shards}:
                sync(folder)  # tensors that a journal calls done are found again by these names
        self._queue = WriteQueue(queue_bytes)
        is_large = any(shard.size >= HASHED_BYTES for shard in self._shards)
        if self._hash_cache is not None and is_large:
            self._hashing, early = HashThread(), EarlyPieces()
            self._hashers = [
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
        self._queue.run_after_writes(work)

    def sync(self) -> None:
        """Wait until the files' content is on the disk."""
        with writing(self.folder, "the weights"):
            for file in self._files:
                os.fdatasync(file.handle)

    def finish(self) -> None:
        """Write the index files, wait until everything is on the disk, and close the files."""
        assert self._queue is not None
        self._queue.finish()
        with writing(self.folder, "the index"):
            for path, content in self._indices.items():
                write_text(path, content)
        self.sync()
        if self._hashing is not None and self._hash_cache is not None:
            self._hashing.close()
            for shard, hasher in zip(self._shards, self._hashers, strict=True):
                digest = hasher.finish(shard.size)
                if digest is not None:
                    self._hash_cache.note(shard.path, digest)
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
        shard_number, spec = self._stored[name]
        file = self._files[shard_number]
        with writing(self.folder, name):
            if spec.nbytes < DIRECT_BYTES:
                file.write(piece.data, piece.position)
            else:
                if name not in self._reserved:
                    self._reserved.add(name)
                    file.reserve(spec.offset, spec.nbytes)
                file.write_direct(piece.data, piece.position)
        if self._hashing is not None:
            self._hashing.queue_piece(self._hashers[shard_number], piece)
        elif self._queue is not None:
            self._queue.release(piece)

    def _plan_shards(
        self, folder: Path, prefix: str, tensors_by_file: list[list[TensorSpec]]
    ) -> None:
        """Plan the files of one folder: names, headers, and where each tensor is stored."""
        count = len(tensors_by_file)
        stem = WEIGHTS_FILE.removesuffix(".safetensors")
        name_by_tensor: dict[str, str] = {}
        for number, tensors in enumerate(tensors_by_file, 1):
            name = WEIGHTS_FILE if count == 1 else f"{stem}-{number:05}-of-{count:05}.safetensors"
            opening, stored = encode_header(tensors, self._metadata, prefix)
            name_by_tensor |= dict.fromkeys((spec.name for spec in stored), name)
            for spec in stored:
                self._stored[prefix + spec.name] = (len(self._shards), spec)
            size = len(opening) + sum(spec.nbytes for spec in tensors)
            path = folder / name
            self._shards.append(_Shard(path, opening, size, _is_begun(path, opening, size)))
        if count > 1:
            index = {
                "metadata": {"total_size": sum(s.nbytes for t in tensors_by_file for s in t)},
                "weight_map": name_by_tensor,
            }
            self._indices[folder / f"{WEIGHTS_FILE}.index.json"] = (
                json.dumps(index, indent=2) + "\n"
            )


def _is_begun(path: Path, opening: bytes, size: int) -> bool:
    """Return whether the file exists with this header and length, as after a kill."""
    try:
        with path.open("rb") as file:
            return path.stat().st_size == size and file.read(len(opening)) == opening
    except OSError:
        return False


def _divide_into_files(
    specs: Sequence[TensorSpec], prefixes: Iterable[str], limit: int
) -> dict[str, list[list[TensorSpec]]]:
    """Return for each of `prefixes` with tensors the tensors of its files, of at most `limit` bytes."""
    files: dict[str, list[list[TensorSpec]]] = {}
    filled_bytes: dict[str, int] = {}  # of the last file of each prefix
    for spec in specs:
        prefix = max((p for p in prefixes if spec.name.startswith(p)), key=len)
        size = filled_bytes.get(prefix, 0) + spec.nbytes
        if prefix not in files or (files[prefix][-1] and size > limit):
            files.setdefault(prefix, []).append([])
            size = spec.nbytes
        files[prefix][-1].append(spec)
        filled_bytes[prefix] = size
    return files
