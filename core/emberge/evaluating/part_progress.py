"""Progress of work in parts, such as the tasks of an evaluation, by the running part's number and name."""

from __future__ import annotations

from collections.abc import Callable

from emberge.wording import plural


class PartProgress:
    """Progress of `count` parts, one after the other; it never decreases.

    `report` is called like `Workspace.progress`, with the number of finished parts and a note that names the
    running part: `task 3 of 8: scifact`. A share of a part that is smaller than an earlier share is reported
    as the earlier one, because work within a part may be counted from 0 several times.
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
        self.report(0)

    def report(self, share: float, note: str = "") -> None:
        """Report the finished share of the running part, from 0 to 1, and a note on its present work."""
        done = self._number - 1 + min(max(share, 0), 1)
        self._furthest = max(self._furthest, min(done, self._count))
        text = f"{self._part} · {note}" if note and self._part else self._part or note
        self._report(self._furthest, self._count, plural(self._noun), text)

    def end(self) -> None:
        """Report the running part as done."""
        self.report(1)
