"""A reader of tensors by position, into memory that the caller has."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from emberge.errors import CheckpointError
from emberge.files.read_ahead import announce
from emberge.tensor_files.derived_tensor import DerivedTensor, read_derived, read_derived_bytes
from emberge.tensor_files.safetensors_header import TensorSpec

__all__ = ["TensorReader", "bytes_of", "scratch"]

_LOCAL = threading.local()

# The distance to which what follows in a file is announced: a few blocks, of each model.
_AHEAD = 16 << 20
# Less is not worth an announcement.
_WORTH = 64 << 10


def scratch(use: str, elements: int, dtype: torch.dtype, *, pinned: bool = False) -> Tensor:
    """Return this thread's flat buffer for a use, as large as asked, with any content.

    A GPU copies from a `pinned` one by itself.
    """
    buffers: dict[tuple[str, torch.dtype], Tensor] = _LOCAL.__dict__.setdefault("buffers", {})
    buffer = buffers.get((use, dtype))
    if buffer is None or buffer.numel() < elements:
        buffer = buffers[use, dtype] = torch.empty(elements, dtype=dtype, pin_memory=pinned)
    return buffer[:elements]


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous CPU tensor, without a copy."""
    flat: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat)


class TensorReader:
    """A reader of parts of tensors (pread) into given buffers, from any number of threads."""

    def __init__(self) -> None:
        self._files: dict[Path, int] = {}
        self._lock = threading.Lock()
        self._remembered: dict[Hashable, Tensor] = {}
        self._remembering = threading.RLock()

    def read_bytes(self, spec: TensorSpec, start: int, into: memoryview) -> None:
        """Fill `into` with the tensor's bytes from byte `start`.

        Raises:
            CheckpointError: when the file ends before that.
        """
        if isinstance(spec, DerivedTensor):
            read_derived_bytes(spec, self, start, into)
            return
        handle, place, done = self._handle(spec.file), spec.offset + start, 0
        while done < len(into):
            got = os.preadv(handle, [into[done:]], place + done)
            if got == 0:
                raise CheckpointError(
                    f"{spec.file}: ends inside tensor '{spec.name}'; get the file again"
                )
            done += got
        if done >= _WORTH:
            # Tensors are merged in about the order that they have in their files, so this is what comes next.
            announce(handle, place + _AHEAD, place + _AHEAD + done)

    def read(self, spec: TensorSpec, start: int, into: Tensor) -> None:
        """Fill the flat, contiguous `into` with elements from `start` on, converted to its dtype."""
        if isinstance(spec, DerivedTensor):
            read_derived(spec, self, start, into)
            return
        dtype = getattr(torch, spec.dtype)
        if dtype == into.dtype:
            self.read_bytes(spec, start * spec.itemsize, bytes_of(into))
            return
        raw = scratch("raw", into.numel(), dtype)
        self.read_bytes(spec, start * spec.itemsize, bytes_of(raw))
        into.copy_(raw)

    def remember(self, what: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """Return the result of `make`, computed once for all threads: small, and of a whole tensor."""
        with self._remembering:
            if what not in self._remembered:
                self._remembered[what] = make()
            return self._remembered[what]

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            for handle in self._files.values():
                os.close(handle)
            self._files.clear()

    def __enter__(self) -> TensorReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _handle(self, path: Path) -> int:
        handle = self._files.get(path)
        if handle is None:
            with self._lock:
                handle = self._files.get(path)
                if handle is None:
                    handle = self._files[path] = os.open(path, os.O_RDONLY)
        return handle
