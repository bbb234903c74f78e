"""Numbers that a model gives of its own counts, such as the load of its experts, kept over a training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from emberge.contracts import AuxiliaryMetrics

# Points that are kept at least, once there are as many: every second one goes when they are twice as many.
POINTS = 25


@dataclass(eq=False)
class ModelMetrics:
    """Sums of a model's counts since the last logged point, and the values at those points."""

    warn: Callable[[str], None] = lambda _: None
    points: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    _sums: Tensor | None = None
    _reader: AuxiliaryMetrics | None = None
    _warned: set[str] = field(default_factory=set)

    def add(self, counts: Tensor, reader: AuxiliaryMetrics) -> None:
        """Count a step; `counts` [n] are on the CPU."""
        self._sums = counts if self._sums is None else self._sums + counts
        self._reader = reader

    def log(self, at: int) -> Mapping[str, float]:
        """Return the values since the point before, and keep them as those of step `at`."""
        if self._sums is None or self._reader is None:
            return {}
        found = dict(self._reader.values(self._sums))
        for message in self._reader.warnings(self._sums):
            if message not in self._warned:
                self._warned.add(message)
                self.warn(message)
        self._sums = None
        self.points.append((at, found))
        if len(self.points) == 2 * POINTS:
            self.points = self.points[1::2]
        return found

    def figures(self) -> tuple[dict[str, Any], ...]:
        """Return the model's figures of all points."""
        if self._reader is None or not self.points:
            return ()
        return tuple(self._reader.figures(self.points))

    def facts(self) -> dict[str, Any]:
        """Return all that a training which goes on from here needs, as plain values."""
        sums = None if self._sums is None else self._sums.tolist()
        return {"points": self.points, "sums": sums, "warned": sorted(self._warned)}

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Go on from what `facts` returned."""
        self.points = [(at, dict(values)) for at, values in facts["points"]]
        if facts["sums"] is not None:
            self._sums = torch.tensor(facts["sums"], dtype=torch.float64)
        self._warned = set(facts["warned"])
