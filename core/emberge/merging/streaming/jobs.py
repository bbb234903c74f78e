"""What a streamed checkpoint is made of: one job a tensor, each told which rows to measure or produce."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from emberge.contracts.block import Block, rows_of
from emberge.contracts.chain import Chain, scope_key
from emberge.contracts.stage import Measures, Scope
from emberge.errors import CheckpointError
from emberge.merging.statistics.row_entries import RowStatistics
from emberge.merging.streaming.memory_budget import element_bytes
from emberge.merging.tokens.token_rows import PartialRows
from emberge.tensor_files.safetensors_header import TensorSpec
from emberge.tensor_files.tensor_reader import TensorReader, bytes_of, scratch

__all__ = ["CopyJob", "FileSource", "MemorySource", "MergeJob", "Pass", "TensorJob", "TensorSource"]


_LOST = (
    "more than half of the changes are exactly zero, as base and models are stored in bfloat16; "
    "save specialists in float32"
)


@dataclass(frozen=True, slots=True)
class Pass:
    """One reading of a tensor before it is produced: with what its measures are summed, and how."""

    key: str
    join: Callable[[Sequence[Measures]], Measures]


class TensorJob(Protocol):
    """One tensor of the output. The runner chooses the rows, their order, the thread and the device.

    All jobs of one `unit` have passes of the same number, and all of them are measured before any is
    produced. `stats` holds one entry a finished pass. A job that measures nothing needs `spec` and
    `produce` alone.
    """

    spec: TensorSpec
    """Name, shape and dtype of what comes out, known before any work."""

    @property
    def unit(self) -> str:
        """The jobs that are measured together."""
        return self.spec.name

    @property
    def whole(self) -> bool:
        """Whether the tensor must be produced in one piece."""
        return False

    @property
    def row_bytes(self) -> int:
        """Memory that one row takes while it is worked on, for the memory limit."""
        return rows_of(self.spec.shape)[1] * 8

    @property
    def passes(self) -> Sequence[Pass]:
        """What is measured first."""
        return ()

    def needs_rows(self, rows: range, stats: Sequence[Measures]) -> bool:
        """Whether the next pass has to see these rows."""
        return True

    def measure(self, rows: range, index: int, stats: Sequence[Measures], device: str) -> Measures:
        """Measures of a granule; `index` is its place among the tensor's granules."""
        return {}

    def conclude(self, stats: Sequence[Measures]) -> Measures:
        """What takes the place of stats[-1] after a pass."""
        return stats[-1]

    def produce(self, rows: range, stats: Sequence[Measures], device: str) -> Tensor:
        """The rows as they will be stored: contiguous, on the CPU, valid until this thread's next call.

        A tensor of `uint8` is taken as raw bytes.
        """
        ...


class TensorSource(Protocol):
    """Where one model's tensor comes from."""

    @property
    def model(self) -> str:
        """The model's name, for messages."""
        ...

    def read(self, start: int, into: Tensor) -> None:
        """Fill the flat, contiguous `into` with the elements from `start` on."""
        ...

    def read_bytes(self, start: int, into: memoryview) -> None:
        """Fill `into` with the stored bytes from byte `start` on."""
        ...


@dataclass(frozen=True, slots=True)
class FileSource:
    """A tensor in a file. Elements beyond its end, the padding of a vocabulary, come from `padding`."""

    model: str
    spec: TensorSpec
    reader: TensorReader
    padding: FileSource | None = None

    def read(self, start: int, into: Tensor) -> None:
        own = max(0, min(into.numel(), self.spec.elements - start))
        if own:
            self.reader.read(self.spec, start, into[:own])
        if own < into.numel() and self.padding is not None:
            self.padding.read(start + own, into[own:])

    def read_bytes(self, start: int, into: memoryview) -> None:
        self.reader.read_bytes(self.spec, start, into)


@dataclass(frozen=True, slots=True)
class MemorySource:
    """A tensor that is in memory."""

    model: str
    tensor: Tensor

    def read(self, start: int, into: Tensor) -> None:
        into.copy_(self.tensor.reshape(-1)[start : start + into.numel()])

    def read_bytes(self, start: int, into: memoryview) -> None:
        into[:] = bytes_of(self.tensor.contiguous())[start : start + len(into)]


@dataclass(frozen=True, slots=True, eq=False)
class MergeJob(TensorJob):
    """Merges one tensor of several models by a chain of stages.

    `block` is the block without data: canonical name, layer, models, groups, weights, seed, fingerprints;
    its `tensors` are empty and of the dtype to compute in. `chain_id` tells chains of different rules apart,
    so that a stage measures only the tensors that its rule owns; `owned` has the rows that some models lack,
    which are no strategy's; `coarse` says that base and models are stored
    so roughly that small changes are lost. `warnings` fills while the job is done.
    """

    spec: TensorSpec
    sources: Sequence[TensorSource]
    base: TensorSource | None
    chain: Chain
    block: Block
    chain_id: int = 0
    coarse: bool = False
    owned: PartialRows | None = None
    warnings: list[str] = field(default_factory=list)
    passes: Sequence[Pass] = field(init=False)

    def __post_init__(self) -> None:
        passes = [
            Pass(f"{self.chain_id}:{link.scope}:{scope_key(link.scope, self.block)}", link.join)
            for link in self.chain.links
            for _ in range(link.passes)
        ]
        object.__setattr__(self, "passes", tuple(passes))

    @property
    def unit(self) -> str:
        scopes = {link.scope for link in self.chain.links if link.passes}
        widest: Scope = "model" if "model" in scopes else "layer" if "layer" in scopes else "tensor"
        return f"{self.chain_id}:{widest}:{scope_key(widest, self.block)}"

    @property
    def whole(self) -> bool:
        return any(link.whole_for(self.block) for link in self.chain.links)

    @property
    def row_bytes(self) -> int:
        itemsize = self.block.tensors.dtype.itemsize
        each = element_bytes(len(self.sources), based=self.base is not None, itemsize=itemsize)
        rows, width = rows_of(self.spec.shape)
        told = self.block.statistics
        more = told.row_bytes(rows) if isinstance(told, RowStatistics) else 0
        return width * each + more

    def needs_rows(self, rows: range, stats: Sequence[Measures]) -> bool:
        position, known = self._position(len(stats)), self._by_link(stats)
        width = rows_of(self.spec.shape)[1]
        link = self.chain.links[position]
        return link.needs_rows(rows.start * width, len(rows) * width, known[position])

    def measure(self, rows: range, index: int, stats: Sequence[Measures], device: str) -> Measures:
        block = self._block(rows, index, device, guard=not stats)
        with self._naming_the_tensor():
            return self.chain.measure(self._by_link(stats), block, self._position(len(stats)))

    def conclude(self, stats: Sequence[Measures]) -> Measures:
        position = self._position(len(stats) - 1)
        with self._naming_the_tensor():
            concluded = self.chain.conclude(self._by_link(stats), self.block, position)
        if concluded.get("warning"):
            self.warnings.append(concluded["warning"])
        return concluded

    def produce(self, rows: range, stats: Sequence[Measures], device: str) -> Tensor:
        block = self._block(rows, 0, device, guard=not self.passes)
        with self._naming_the_tensor():
            merged = self.chain.merge(self._by_link(stats), block)
        stored = merged.to(dtype=getattr(torch, self.spec.dtype)).cpu().contiguous()
        if self.owned is not None:
            self.owned.settle(rows, stored, self.sources, self.base)
        if not _finite(stored):
            raise CheckpointError(
                f"{self.spec.name}: merging gives values that {self.spec.dtype} cannot hold; "
                f"choose another out_dtype or smaller weights"
            )
        return stored

    @contextmanager
    def _naming_the_tensor(self) -> Iterator[None]:
        """Let a stage say what is wrong without knowing how it is told."""
        try:
            yield
        except ValueError as error:
            place = "" if str(error).startswith(self.block.name) else f"{self.spec.name}: "
            raise CheckpointError(f"{place}{error}") from error

    def _position(self, number: int) -> int:
        for position, link in enumerate(self.chain.links):
            if number < link.passes:
                return position
            number -= link.passes
        raise IndexError(number)

    def _by_link(self, stats: Sequence[Measures]) -> list[Sequence[Measures]]:
        split, start = [], 0
        for link in self.chain.links:
            split.append(stats[start : start + link.passes])
            start += link.passes
        return split

    def _block(self, rows: range, index: int, device: str, *, guard: bool) -> Block:
        shape = self.spec.shape
        width = rows_of(shape)[1]
        start, size = rows.start * width, len(rows) * width
        some = (len(rows), *shape[1:]) if len(shape) > 1 else shape
        sources = [*self.sources, self.base] if self.base else [*self.sources]
        gpu = device != "cpu"
        use = "pinned" if gpu else "block"
        flat = scratch(use, len(sources) * size, self.block.tensors.dtype, pinned=gpu)
        stacked = flat.view(len(sources), size)
        for source, into in zip(sources, stacked, strict=True):
            source.read(start, into)
            if guard and not _finite(into):
                raise CheckpointError(
                    f"{self.spec.name}: '{source.model}' holds NaN or infinite values; "
                    f"leave that model out or make it again"
                )
        shaped = stacked.view(len(sources), *some).to(device, non_blocking=gpu)
        base = shaped[-1] if self.base else None
        models = shaped[: len(self.sources)]
        if guard and self.coarse and start == 0 and base is not None and len(shape) > 1:
            same = float((models == base).float().mean())
            if same > 0.5:
                self.warnings.append(_LOST)
        told = self.block.statistics
        told = told.of(rows, device) if isinstance(told, RowStatistics) else told
        return self.block.replace(
            tensors=models, base=base, start=start, index=index, statistics=told
        )


@dataclass(frozen=True, slots=True)
class CopyJob(TensorJob):
    """Moves one tensor's bytes as they are; `same` lists sources whose bytes must be equal."""

    spec: TensorSpec
    source: TensorSource
    same: Sequence[TensorSource] = ()

    def produce(self, rows: range, stats: Sequence[Measures], device: str) -> Tensor:
        width = rows_of(self.spec.shape)[1] * self.spec.itemsize
        piece = self._bytes("copy", self.source, rows.start * width, len(rows) * width)
        for other in self.same:
            if not torch.equal(piece, self._bytes("same", other, rows.start * width, len(piece))):
                raise CheckpointError(
                    f"{self.spec.name}: {self.spec.dtype} values cannot be merged, and those of "
                    f"'{other.model}' differ from those of '{self.source.model}'"
                )
        return piece

    @staticmethod
    def _bytes(use: str, source: TensorSource, start: int, size: int) -> Tensor:
        piece = scratch(use, size, torch.uint8)
        source.read_bytes(start, bytes_of(piece))
        return piece


def _finite(tensor: Tensor) -> bool:
    # One sum tells of any NaN or infinity; it may overflow by itself, so a look at each value decides.
    accumulate = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    total = float(tensor.sum(dtype=accumulate))
    return total - total == 0.0 or bool(torch.isfinite(tensor).all())
