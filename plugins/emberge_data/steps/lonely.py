"""Labels of which one row is left: its positive cannot be drawn any more, so it goes too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from emberge.data import StoredDataset

    from emberge_data.steps.outcome import Outcome


NOTE = "no other row of its label is left"


def drop_lonely(
    dataset: StoredDataset, outcomes: Callable[[], Iterable[Outcome]]
) -> Iterator[Outcome]:
    """Yield the outcomes of rows; in a set whose positives are drawn, the last row of a label goes.

    `outcomes` is called twice for such a set: once to count labels.
    """
    if not dataset.draws:
        yield from outcomes()
        return
    left = Counter(one.after.label for one in outcomes() if one.after is not None)
    for outcome in outcomes():
        alone = outcome.after is not None and left[outcome.after.label] == 1
        yield replace(outcome, after=None, note=NOTE) if alone else outcome
