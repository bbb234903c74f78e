"""Findings of test texts in training texts, the verdicts on rows, and their counts by task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from emberge.wording import table_lines

from emberge_data.steps.decontaminate.test_index import TestIndex
from emberge_data.steps.text_similarity import WORDS

if TYPE_CHECKING:
    from emberge.contracts import Side
    from numpy.typing import NDArray

    from emberge_data.steps.decontaminate.test_index import Match, Way
    from emberge_data.steps.decontaminate.test_texts import TestTexts
    from emberge_data.steps.row_texts import RowTexts


_AT_ONCE = 256
_COLUMNS = (
    *("queries", "in the data", "documents", "in the data"),
    *("rows before", "dropped", "changed", "after"),
)


@dataclass(frozen=True, slots=True)
class TextOverlap:
    """Overlap of one test text with a training text."""

    task: str
    side: Side
    way: Way
    similarity: float
    test: str

    def note(self) -> str:
        """Return the finding in words, without the text."""
        ways = {"equal": "equal to", "overlap": f"{WORDS} words of", "near": "nearly"}
        return f"{ways[self.way]} a {self.side} of {self.task}"


@dataclass(frozen=True, slots=True)
class RowFate:
    """Fate of a row that contains test texts: the row is dropped, or only its negatives at `negatives`.

    `finding` is the decisive finding; None if the row does not change. `before` and `after` are the tasks
    whose test texts the row contains before and after the change.
    """

    dropped: bool
    negatives: tuple[int, ...]
    finding: TextOverlap | None
    before: frozenset[str]
    after: frozenset[str]


@dataclass
class TaskCounts:
    """Counts of one task: distinct test texts, those in the data, and rows with any of them."""

    queries: int = 0
    queries_found: int = 0
    documents: int = 0
    documents_found: int = 0
    rows_before: int = 0
    rows_dropped: int = 0
    rows_changed: int = 0
    rows_after: int = 0


@dataclass
class Findings:
    """Findings by training text, and counts by task.

    `lowest_similarity` has the lowest similarity at which each training text counts as near to a test text.
    """

    lowest_similarity: NDArray[np.float64]
    tasks: dict[str, TaskCounts] = field(default_factory=lambda: defaultdict(TaskCounts))
    by_text: dict[int, dict[tuple[str, Side], TextOverlap]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def search(self, tests: TestTexts, training: RowTexts, threshold: float) -> Iterator[int]:
        """Search all training texts for a block's test texts; yield the number of texts searched so far."""
        index, tests_in_data = TestIndex(tests.texts, threshold), set[int]()
        texts = training.distinct
        for start in range(0, len(texts), _AT_ONCE):
            for match in index.find_matches(texts[start : start + _AT_ONCE], start):
                if match.way == "equal" or match.similarity >= self.lowest_similarity[match.text]:
                    tests_in_data.add(match.test)
                    self._record_match(match, tests)
            yield min(start + _AT_ONCE, len(texts))
        for match in index.overlaps():
            tests_in_data.add(match.test)
            self._record_match(match, tests)
        for test, uses in enumerate(tests.uses):
            for task, side in uses:
                self._count(task, side, test in tests_in_data)

    def _record_match(self, match: Match, tests: TestTexts) -> None:
        """Keep the match with the highest similarity for a text, task and side."""
        overlaps = self.by_text[match.text]
        for use in tests.uses[match.test]:
            known_overlap = overlaps.get(use)
            if known_overlap is None or match.similarity > known_overlap.similarity:
                overlaps[use] = TextOverlap(
                    *use, match.way, match.similarity, tests.originals[match.test]
                )

    def _count(self, task: str, side: Side, in_data: bool) -> None:
        counts = self.tasks[task]
        if side == "query":
            counts.queries += 1
            counts.queries_found += in_data
        else:
            counts.documents += 1
            counts.documents_found += in_data

    def verdict(self, training: RowTexts, row: int, drop: Collection[Side]) -> RowFate:
        """Return the fate of a row; `drop` names the sides of tests whose texts are removed."""
        own_texts, negatives = training.of_row(row)
        own_overlaps = [overlap for text in own_texts for overlap in self._list_overlaps(text)]
        reason = next((overlap for overlap in own_overlaps if overlap.side in drop), None)
        dropped = tuple(
            number
            for number, text in enumerate(negatives)
            if any(overlap.side in drop for overlap in self._list_overlaps(text))
        )
        overlaps_by_negative = {
            number: self._list_overlaps(text) for number, text in enumerate(negatives)
        }
        before = {
            overlap.task
            for overlap in [
                *own_overlaps,
                *(overlap for overlaps in overlaps_by_negative.values() for overlap in overlaps),
            ]
        }
        if reason is not None:
            return RowFate(True, (), reason, frozenset(before), frozenset())
        remaining = [
            overlaps for number, overlaps in overlaps_by_negative.items() if number not in dropped
        ]
        after = {
            overlap.task
            for overlap in [
                *own_overlaps,
                *(overlap for overlaps in remaining for overlap in overlaps),
            ]
        }
        if dropped:
            reason = next(
                overlap for overlap in overlaps_by_negative[dropped[0]] if overlap.side in drop
            )
        return RowFate(False, dropped, reason, frozenset(before), frozenset(after))

    def _list_overlaps(self, text: int) -> list[TextOverlap]:
        return list(self.by_text.get(text, {}).values())

    def count(self, verdict: RowFate) -> None:
        """Count one row's verdict for each task whose texts it had."""
        for task in verdict.before:
            counts = self.tasks[task]
            counts.rows_before += 1
            counts.rows_dropped += verdict.dropped
            counts.rows_changed += bool(verdict.negatives)
            counts.rows_after += task in verdict.after

    def plain(self) -> dict[str, dict[str, int]]:
        """Return the counts by task as JSON values."""
        return {task: asdict(counts) for task, counts in self.tasks.items()}


def lowest_of_text(training: RowTexts, thresholds: Sequence[float]) -> NDArray[np.float64]:
    """Return the lowest threshold [texts] of the sets that contain each distinct text."""
    lowest_thresholds = np.ones(len(training.distinct))
    for threshold, texts in zip(thresholds, training.of_sets(), strict=True):
        lowest_thresholds[texts] = np.minimum(lowest_thresholds[texts], threshold)
    return lowest_thresholds


def tests_table(tasks: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the counts of tasks as a Markdown table."""
    rows = [[task, *(f"{n:,}" for n in counts.values())] for task, counts in tasks.items()]
    lines = table_lines(["test", *_COLUMNS], rows, "l" + "r" * len(_COLUMNS))
    return "\n".join(["", "Test texts in the data, before and after:", "", *lines]) + "\n"
