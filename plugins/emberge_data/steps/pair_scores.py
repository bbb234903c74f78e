"""Scores of a set's pairs, written in segments, so that a killed run goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from emberge import Dataset, Example
from emberge.engine import write_text

__all__ = ["SEGMENT", "PairScores", "Segment", "pairs_of"]

# Pairs that are scored and written at once: what a kill can cost, and what is in memory at a time.
SEGMENT = 4096

Segment = Sequence[tuple[int, Example]]
"""Rows of a set by number, which are scored together."""


def pairs_of(segment: Segment) -> list[tuple[str, str]]:
    """Return the anchor with each positive, then each negative, row after row."""
    return [
        (example.anchor, text)
        for _, example in segment
        for text in (*example.positives, *example.negatives)
    ]


class PairScores:
    """Raw scores of a set's rows, in a folder that outlives a kill.

    Which rows make a segment depends on the set alone, so those that are computed again get the same company
    and the same scores.
    """

    def __init__(self, folder: Path, dataset: Dataset, size: int = SEGMENT) -> None:
        self._folder = folder
        self._dataset = dataset
        self._size = size

    def fill(self, score: Callable[[Segment], Sequence[float]], *, rank: int = 0, ranks: int = 1) -> None:
        """Score the segments that the folder lacks; every one of `ranks` takes its turn."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for number, segment in enumerate(self._segments()):
            path = self._path(number)
            if number % ranks == rank and not path.is_file():
                write_text(path, json.dumps([float(one) for one in score(segment)]))

    def rows(self) -> Iterator[tuple[int, Example, tuple[float, ...], tuple[float, ...]]]:
        """Yield each row's number and example, the scores of its positives and those of its negatives."""
        for number, segment in enumerate(self._segments()):
            scores = iter(json.loads(self._path(number).read_text(encoding="utf-8")))
            for row, example in segment:
                above = tuple(next(scores) for _ in example.positives)
                yield row, example, above, tuple(next(scores) for _ in example.negatives)

    def _path(self, number: int) -> Path:
        return self._folder / f"{number}.json"

    def _segments(self) -> Iterator[Segment]:
        found: list[tuple[int, Example]] = []
        pairs = 0
        for row in range(len(self._dataset)):
            example = self._dataset[row]
            found.append((row, example))
            pairs += len(example.positives) + len(example.negatives)
            if pairs >= self._size:
                yield found
                found, pairs = [], 0
        if found:
            yield found
