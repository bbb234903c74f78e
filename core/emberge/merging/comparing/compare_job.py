"""The job that compares one tensor of two models: sums over granules, and nothing is produced."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from emberge.contracts import Measures, rows_of
from emberge.errors import CheckpointError
from emberge.merging.comparing.comparison import PairSums
from emberge.merging.streaming.jobs import Pass, TensorJob
from emberge.tensor_files import TensorSource, TensorSpec, scratch

# Elements summed in float32, before sums are added in float64: squares of 2^18 were wrong by up to 2e-6.
_SUMMED = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class CompareJob(TensorJob):
    """Compares one tensor of two models, and of a base if there is a third source.

    `spec` has the rows that are compared; of these `shared` marks those that mean the same in all models,
    None for all of them. The outcome is `weights`, and with a base `changes`, once all is measured.
    """

    spec: TensorSpec
    sources: Sequence[TensorSource]
    shared: Tensor | None = None
    outcome: dict[str, PairSums] = field(default_factory=dict)

    @property
    def passes(self) -> Sequence[Pass]:
        return (Pass(self.spec.name, _joined),)

    def measure(self, rows: range, index: int, stats: Sequence[Measures], device: str) -> Measures:
        width = rows_of(self.spec.shape)[1]
        size = len(rows) * width
        gpu = device != "cpu"
        flat = scratch("compared", (len(self.sources) + 1) * size, torch.float32, pinned=gpu)
        stacked = flat.view(len(self.sources) + 1, size)
        for source, into in zip(self.sources, stacked, strict=False):
            source.read(rows.start * width, into)
        elements = self._without_others(rows, stacked, width)
        first, second, *rest = stacked.to(device, non_blocking=gpu)
        spare = rest[-1]
        sums = {"weights": _sums(first, second, spare, elements)}
        if len(rest) > 1:
            first.sub_(rest[0])
            second.sub_(rest[0])
            sums["changes"] = _sums(first, second, spare, elements)
        return sums

    def conclude(self, stats: Sequence[Measures]) -> Measures:
        for what, numbers in stats[-1].items():
            sums = PairSums(*numbers.tolist())
            if sums.change - sums.change != 0:  # NaN and infinity are no sums
                raise CheckpointError(f"{self.spec.name}: {self._not_finite()}")
            self.outcome[what] = sums
        return stats[-1]

    def produce(self, rows: range, stats: Sequence[Measures], device: str) -> Tensor:
        raise NotImplementedError("a comparison produces nothing")

    def _without_others(self, rows: range, stacked: Tensor, width: int) -> int:
        """Set rows that mean different things to zero, and return the number of elements that are left."""
        if self.shared is None:
            return len(rows) * width
        own = self.shared[rows.start : rows.stop]
        if not bool(own.all()):
            stacked[:-1].view(-1, len(rows), width)[:, ~own] = 0
        return int(own.sum()) * width

    def _not_finite(self) -> str:
        return (
            f"{' or '.join(repr(source.model) for source in self.sources)} has NaN or infinite values, or "
            "values too large to be compared; make it again"
        )


def _joined(measures: Sequence[Measures]) -> Measures:
    names = measures[0] if measures else ()
    return {name: functools.reduce(torch.add, (one[name] for one in measures)) for name in names}


def _sums(first: Tensor, second: Tensor, spare: Tensor, elements: int) -> Tensor:
    """Return the numbers of PairSums [5], in float64."""
    torch.mul(first, second, out=spare)
    conflicts = _below_zero(spare)
    torch.sub(second, first, out=spare)
    squares = [_squares(one) for one in (first, second, spare)]
    return torch.tensor([elements, *squares, conflicts], dtype=torch.float64)


def _squares(values: Tensor) -> float:
    parts = torch.split(values, _SUMMED)
    return math.fsum(float(torch.dot(part, part)) for part in parts)


def _below_zero(values: Tensor) -> int:
    """Return the number of values below zero; NumPy counts several times as fast as torch."""
    if values.device.type != "cpu":
        return int(torch.count_nonzero(values < 0))
    import numpy as np

    below = scratch("below", values.numel(), torch.bool).numpy()
    return int(np.count_nonzero(np.less(values.numpy(), 0, out=below)))
