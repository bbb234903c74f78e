"""The progress of work with parts, such as the tasks of an evaluation, which says which part of how many."""

from __future__ import annotations

from collections.abc import Callable

from emberge.wording import plural


class PartProgress:
    """Progress of `count` parts, one after the other, that never falls back.

    `report` is called like `Workspace.progress`, with the number of parts that are done; its note is the
    running part's: `task 3 of 8: scifact`. Within a part, a share that is smaller than an earlier one counts
    as that one, as the parts of a part may be counted again from their start.
    """

    def __init__(self, report: Callable[..., None], noun: str, count: int) -> None:
        self._report = report
        self._noun = noun
        self._count = count
        self._number = self._furthest = 0.0
        self._part = ""

    def begin(self, name: str) -> None:
        """Begin the next part."""
        self._number += 1
        self._part = f"{self._noun} {self._number:.0f} of {self._count}: {name}"
        self.tell(0)

    def tell(self, share: float, note: str = "") -> None:
        """Report how much of the running part is done, from 0 to 1, and what happens in it."""
        done = self._number - 1 + min(max(share, 0), 1)
        self._furthest = max(self._furthest, min(done, self._count))
        text = f"{self._part} · {note}" if note and self._part else self._part or note
        self._report(self._furthest, self._count, plural(self._noun), text)

    def end(self) -> None:
        """Report the running part as done."""
        self.tell(1)
