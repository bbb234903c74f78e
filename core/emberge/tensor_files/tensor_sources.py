"""Sources of one model's tensor: a file, or memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from emberge.tensor_files.safetensors_header import TensorSpec
from emberge.tensor_files.tensor_reader import TensorReader, bytes_of


class TensorSource(Protocol):
    """The source that one model's tensor is read from."""

    @property
    def model(self) -> str:
        """The model's name, for messages."""
        ...

    @property
    def spec(self) -> TensorSpec:
        """Shape and dtype of the tensor as it is stored."""
        ...

    def read(self, start: int, into: Tensor) -> None:
        """Fill the flat, contiguous `into` with the elements from `start` on."""
        ...

    def read_bytes(self, start: int, into: memoryview) -> None:
        """Fill `into` with the stored bytes from byte `start` on."""
        ...


@dataclass(frozen=True, slots=True)
class FileSource:
    """A tensor in a file, or a derived one. Elements beyond its end come from `padding`.

    `model` names it in messages; `padding` is for vocabularies of fewer rows than the result's.
    """

    model: str
    spec: TensorSpec
    reader: TensorReader
    padding: FileSource | None = None

    def read(self, start: int, into: Tensor) -> None:
        """Fill `into` with the elements from `start` on, those beyond the end from the padding."""
        own = max(0, min(into.numel(), self.spec.elements - start))
        if own:
            self.reader.read(self.spec, start, into[:own])
        if own < into.numel() and self.padding is not None:
            self.padding.read(start + own, into[own:])

    def read_bytes(self, start: int, into: memoryview) -> None:
        """Fill `into` with the file's bytes from byte `start` of the tensor on."""
        self.reader.read_bytes(self.spec, start, into)


@dataclass(frozen=True, slots=True)
class MemorySource:
    """A tensor in memory."""

    model: str
    tensor: Tensor

    @property
    def spec(self) -> TensorSpec:
        dtype = str(self.tensor.dtype).removeprefix("torch.")
        return TensorSpec("", tuple(self.tensor.shape), dtype)

    def read(self, start: int, into: Tensor) -> None:
        """Copy the elements from `start` on into `into`."""
        into.copy_(self.tensor.reshape(-1)[start : start + into.numel()])

    def read_bytes(self, start: int, into: memoryview) -> None:
        """Copy the bytes from byte `start` on into `into`."""
        into[:] = bytes_of(self.tensor.contiguous())[start : start + len(into)]
