"""Scores of a set's pairs, written in segments, so that a killed run can continue."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from emberge import Dataset, Example, Workspace
from emberge.files import write_text

from emberge_data.steps.teacher import OpenTeacher

if TYPE_CHECKING:
    from emberge.data import StoredDataset


# Pairs that are scored and written at once: what a kill can cost, and what is in memory at a time.
SEGMENT = 4096

Segment: TypeAlias = "Sequence[tuple[int, Example]]"
"""Rows of a set by number, which are scored together."""
Score: TypeAlias = "Callable[[Segment], tuple[Sequence[float], int]]"
"""Function that returns one score for each pair, and the number of pairs that were cut."""


def list_pairs(segment: Segment) -> list[tuple[str, str]]:
    """Return (anchor, text) pairs row after row: each positive, then each negative."""
    return [
        (example.anchor, text)
        for _, example in segment
        for text in (*example.positives, *example.negatives)
    ]


class PairScores:
    """A model's unscaled scores of a set's rows, in a folder from which a killed run continues.

    The rows of a segment depend on the set alone. So rows that are scored again are scored together with the
    same other rows, and get the same bytes.
    """

    def __init__(self, folder: Path, dataset: Dataset, size: int | None = None) -> None:
        self._folder = folder
        self._dataset = dataset
        self._size = size or SEGMENT

    def fill(
        self,
        score: Score,
        *,
        rank: int = 0,
        ranks: int = 1,
        done: Callable[[int], None] | None = None,
    ) -> None:
        """Score the segments that are missing in the folder; `ranks` take turns.

        `done` is called with the number of rows after each segment.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        for number, segment in enumerate(self._yield_segments()):
            path = self._locate_segment(number)
            if number % ranks == rank and not path.is_file():
                scores, cut = score(segment)
                write_text(
                    path, json.dumps({"cut": cut, "scores": [float(value) for value in scores]})
                )
            if done is not None:
                done(segment[-1][0] + 1)

    def cut(self) -> int:
        """Return the number of pairs that were truncated to the model's limit."""
        paths = self._folder.glob("[!.]*.json")
        return sum(json.loads(path.read_text(encoding="utf-8"))["cut"] for path in paths)

    def rows(self) -> Iterator[tuple[int, Example, tuple[float, ...], tuple[float, ...]]]:
        """Yield each row's number and example, the scores of its positives and those of its negatives."""
        for number, segment in enumerate(self._yield_segments()):
            segment_scores = json.loads(self._locate_segment(number).read_text(encoding="utf-8"))
            scores = iter(segment_scores["scores"])
            for row, example in segment:
                positive_scores = tuple(next(scores) for _ in example.positives)
                yield row, example, positive_scores, tuple(next(scores) for _ in example.negatives)

    def _locate_segment(self, number: int) -> Path:
        return self._folder / f"{number}.json"

    def _yield_segments(self) -> Iterator[Segment]:
        segment: list[tuple[int, Example]] = []
        pairs = 0
        for row in range(len(self._dataset)):
            example = self._dataset[row]
            segment.append((row, example))
            pairs += len(example.positives) + len(example.negatives)
            if pairs >= self._size:
                yield segment
                segment, pairs = [], 0
        if segment:
            yield segment


def pair_cosines(teacher: OpenTeacher, dataset: StoredDataset, workspace: Workspace) -> Score:
    """Embed a set's texts and return the function that gives cosines of a segment's pairs."""
    import numpy as np

    from emberge_data.steps.listed_set import ArrangedSet, ListedSet
    from emberge_data.steps.search.space import Space

    listed = ListedSet.of(dataset, workspace)
    positives, negatives = listed.positives, listed.negatives
    arranged = ArrangedSet.of(listed, np.union1d(positives.places, negatives.places))
    space = Space(
        teacher.queries(arranged.queries, dataset),
        teacher.documents(arranged.documents, dataset),
        workspace.machine.device,
    )

    def score(segment: Segment) -> tuple[Sequence[float], int]:
        texts = [np.concatenate([positives.of(row), negatives.of(row)]) for row, _ in segment]
        queries = np.repeat(
            arranged.query_of[[row for row, _ in segment]], [len(places) for places in texts]
        )
        cosines = space.scores(queries, arranged.document_of[np.concatenate(texts)])
        return cosines.clip(-1.0, 1.0).tolist(), 0

    return score
