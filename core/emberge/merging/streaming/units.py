"""Jobs that are measured together, measures joined in their order, and how far all of it is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from emberge.contracts.stage import Measures
from emberge.merging.streaming.jobs import TensorJob

__all__ = ["MeasureGroup", "Meter", "OrderedReducer", "Progress"]

Progress = Callable[[float, float, str], None]


class Meter:
    """Counts bytes produced and tells whoever listens."""

    def __init__(self, total: int, tell: Progress | None) -> None:
        self._total, self._tell, self._done = total, tell, 0
        self._lock = threading.Lock()

    def add(self, size: int, name: str) -> None:
        with self._lock:
            self._done += size
            if self._tell is not None:
                self._tell(self._done, self._total, name)


class MeasureGroup:
    """Jobs that are measured together, and how far they are."""

    def __init__(self, jobs: Sequence[TensorJob], wanted: set[int]) -> None:
        self.jobs = jobs
        self.produced = [job for job in jobs if id(job) in wanted]
        self.stats: dict[int, list[Measures]] = {id(job): [] for job in jobs}
        self.phase = 0
        self.folds: dict[str, OrderedReducer] = {}

    @property
    def passes(self) -> int:
        return len(self.jobs[0].passes)


class OrderedReducer:
    """Joins measures in their order as they come in out of order."""

    def __init__(self, join: Callable[[Sequence[Measures]], Measures]) -> None:
        self._join = join
        self._early: dict[int, Measures] = {}
        self._ready: list[Measures] = []
        self.next = 0
        self.count = 0

    def add(self, place: int, measures: Measures) -> None:
        self._early[place] = measures
        while self.next in self._early:
            self._ready.append(self._early.pop(self.next))
            self.next += 1
        if len(self._ready) > 16:
            self._ready = [self._join(self._ready)]

    def result(self) -> Measures:
        return self._join(self._ready)
