"""The progress of a step, in which work within a part counts as a share of that part."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from emberge.wording import make_plural


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a step that is running: its noun, its number from 1, and the text in front of notes."""

    noun: str
    number: int
    count: int
    label: str


class StepProgress:
    """Reports of a step's progress, in which work within a part counts as a share of it.

    `forward` is called like `Workspace.progress`. Within parts it gets the number of finished outermost
    parts, which never decreases: a share that is smaller than an earlier one is reported as the earlier one,
    because work within a part may be counted from 0 several times.
    """

    def __init__(self, forward: Callable[[float, float, str, str], None]) -> None:
        self._forward = forward
        self._parts: list[_Part] = []
        self._furthest = 0.0

    @contextmanager
    def part(self, noun: str, number: int, count: int, name: str = "") -> Iterator[None]:
        """Run the block as part `number`, from 1, of `count`; one without others or a name is no part."""
        if count == 1 and not name:
            yield
            return
        if number == 1 and not any(part.count > 1 for part in self._parts):
            self._furthest = 0.0
        label = f"{noun} {number} of {count}: {name}" if name and count > 1 else name
        self._parts.append(_Part(noun, number, count, label))
        try:
            self.report(0, 1)
            yield
            self.report(1, 1)
        finally:
            self._parts.pop()

    def report(self, done: float, total: float, unit: str = "", note: str = "") -> None:
        """Report progress within the running parts, or of the whole step if there are none."""
        note = " · ".join(filter(None, (*(part.label for part in self._parts), note)))
        parts = [part for part in self._parts if part.count > 1]
        if not parts:
            self._forward(done, total, unit, note)
            return
        share = min(max(done / total, 0.0), 1.0) if total else 0.0
        for part in reversed(parts[1:]):
            share = (part.number - 1 + share) / part.count
        outermost = parts[0]
        self._furthest = max(self._furthest, outermost.number - 1 + share)
        self._forward(self._furthest, outermost.count, make_plural(outermost.noun), note)


@dataclass
class Timer:
    """A timer that lets at least `every` seconds pass between two events of a kind."""

    every: float
    last: float = -1e9

    def is_due(self) -> bool:
        """Return whether enough time has passed since the last event; if so, count from now on."""
        now = time.monotonic()
        if now - self.last < self.every:
            return False
        self.last = now
        return True
