"""A reader of parts of tensors into the caller's memory, and the sources of a model's tensor."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from emberge.errors import CheckpointError
from emberge.files import announce
from emberge.numerics import reuse_tensor
from emberge.tensor_files.derived_tensor import DerivedTensor, read_derived, read_derived_bytes
from emberge.tensor_files.safetensors_header import RemoteFile, TensorSpec
from emberge.tensor_files.tensor_fetcher import FetchedFile, TensorFetcher

if TYPE_CHECKING:
    from torch import Tensor

# Distance between the bytes that are read and those that are announced: a few blocks of each model.
_READ_AHEAD_BYTES = 16 << 20
# Bytes that are announced at once, as each call costs about as much as the reading of a block.
_READ_STEP_BYTES = 4 << 20


def view_bytes(tensor: Tensor | np.ndarray) -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU, or of an array, without a copy."""
    if isinstance(tensor, np.ndarray):
        return tensor.reshape(-1).view(np.uint8).data
    import torch

    flat: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat)


class TensorReader(AbstractContextManager["TensorReader"]):
    """A reader of parts of tensors into given buffers, usable by any number of threads.

    Of files on servers, only the parts that are read are fetched.
    """

    def __init__(self) -> None:
        self._fetcher: TensorFetcher | None = None
        self._files: dict[Path, int] = {}
        self._lock = threading.Lock()
        self._remembered: dict[Hashable, Tensor] = {}
        self._remembering = threading.RLock()

    def read_bytes(self, spec: TensorSpec, start: int, into: memoryview) -> None:
        """Fill `into` with the tensor's bytes from byte `start`.

        Raises:
            CheckpointError: if the file is too short, or cannot be fetched from its server.
        """
        if isinstance(spec, DerivedTensor):
            read_derived_bytes(spec, self, start, into)
            return
        handle, offset = self.locate(spec, start, len(into))
        done = 0
        while done < len(into):
            count = os.preadv(handle, [into[done:]], offset + done)
            if count == 0:
                raise CheckpointError(
                    f"{spec.file}: ends inside tensor '{spec.name}'; get the file again"
                )
            done += count

    def locate(self, spec: TensorSpec, start: int, size: int) -> tuple[int, int]:
        """Return an open file and the position in it of `size` bytes of a tensor, from byte `start` on.

        The file stays open until the end of the reader's `with` block. What will probably be read next is
        announced to the operating system.

        Raises:
            CheckpointError: if the bytes cannot be fetched from their server.
        """
        offset = spec.offset + start
        handle = self._files.get(spec.file)  # never that of a note
        if handle is None and RemoteFile.is_note(spec.file):
            handle = self._open_fetcher().open_fetched(spec, offset, offset + size)
        elif handle is None:
            with self._lock:
                if spec.file not in self._files:
                    self._files[spec.file] = os.open(spec.file, os.O_RDONLY)
                handle = self._files[spec.file]
        # Tensors are merged in about the order that they have in their files, so this is what comes next.
        first, last = (
            (at + _READ_AHEAD_BYTES) // _READ_STEP_BYTES for at in (offset, offset + size)
        )
        if last > first:
            announce(handle, (first + 1) * _READ_STEP_BYTES, (last + 1) * _READ_STEP_BYTES)
        return handle, offset

    def read(self, spec: TensorSpec, start: int, into: Tensor) -> None:
        """Fill the flat, contiguous `into` with elements from `start` on, converted to its dtype."""
        if isinstance(spec, DerivedTensor):
            read_derived(spec, self, start, into)
            return
        import torch

        dtype = getattr(torch, spec.dtype)
        if dtype == into.dtype:
            self.read_bytes(spec, start * spec.itemsize, view_bytes(into))
            return
        raw = reuse_tensor("raw", into.numel(), dtype)
        self.read_bytes(spec, start * spec.itemsize, view_bytes(raw))
        into.copy_(raw)

    def compute_once(self, key: Hashable, compute: Callable[[], Tensor]) -> Tensor:
        """Return the result of `compute`, computed once for all threads; it should be small."""
        with self._remembering:
            if key not in self._remembered:
                self._remembered[key] = compute()
            return self._remembered[key]

    def expect(self, works: Iterable[Sequence[TensorSpec]]) -> None:
        """Begin to fetch from servers the tensors that pieces of work will read, one after the other."""
        remote = [[spec for spec in specs if RemoteFile.is_note(spec.file)] for specs in works]
        if any(remote):
            self._open_fetcher().expect(remote)

    def end_requests(self) -> None:
        """End all requests to servers; threads waiting for one get an error."""
        if self._fetcher is not None:
            self._fetcher.end_requests()

    def verify(self) -> list[FetchedFile]:
        """Compare all files read from servers with their versions and hashes, and return the records.

        Raises:
            CheckpointError: if a file has changed since it was read, or does not match its server's
                description.
        """
        return self._fetcher.verify() if self._fetcher is not None else []

    def __exit__(self, *_: object) -> None:
        """Close all files."""
        if self._fetcher is not None:
            self._fetcher.close()
        with self._lock:
            for handle in self._files.values():
                os.close(handle)
            self._files.clear()

    def _open_fetcher(self) -> TensorFetcher:
        with self._lock:
            self._fetcher = self._fetcher or TensorFetcher()
            return self._fetcher


class TensorSource(Protocol):
    """The source from which a model's tensor is read."""

    @property
    def model(self) -> str:
        """The model's name, for messages."""

    @property
    def spec(self) -> TensorSpec:
        """Stored shape and dtype of the tensor."""

    def read(self, start: int, into: Tensor) -> None:
        """Fill the flat, contiguous `into` with the elements from `start` on."""

    def read_bytes(self, start: int, into: memoryview) -> None:
        """Fill `into` with the stored bytes from byte `start` on."""

    def locate(self, start: int, size: int) -> tuple[int, int] | None:
        """Return an open file and the position of stored bytes from `start` on; None without a file."""


@dataclass(frozen=True, slots=True)
class FileSource:
    """A tensor in a file, or a derived tensor; `model` is the name of its model in messages."""

    model: str
    spec: TensorSpec
    reader: TensorReader

    def read(self, start: int, into: Tensor) -> None:
        """Fill `into` with the elements from `start` on."""
        self.reader.read(self.spec, start, into)

    def read_bytes(self, start: int, into: memoryview) -> None:
        """Fill `into` with the file's bytes from byte `start` of the tensor on."""
        self.reader.read_bytes(self.spec, start, into)

    def locate(self, start: int, size: int) -> tuple[int, int] | None:
        """Return the open file and the position of the tensor's bytes; None if they are computed."""
        if isinstance(self.spec, DerivedTensor):
            return None
        return self.reader.locate(self.spec, start, size)
