"""The `filter_negatives` step: negatives that a teacher takes for positives are removed."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import DataError, Example, Share, Workspace

from emberge_data.steps.listed_set import ListedSet, rows_of
from emberge_data.steps.outcome import Outcome
from emberge_data.steps.taught_step import TaughtStep, describe_spread

if TYPE_CHECKING:
    import numpy as np
    from emberge.data import StoredDataset
    from numpy.typing import NDArray

    from emberge_data.steps.listed_set import ArrangedSet
    from emberge_data.steps.search.space import Space


@dataclass(frozen=True, kw_only=True)
class FilterNegatives(TaughtStep):
    """Filter that removes the negatives which a teacher takes for positives.

    A negative is removed if any teacher scores it above the threshold of `mine_hard_negatives`, which follows
    from the lowest score of the query's positives (NV-Retriever, 2024, arXiv:2407.15831; for mined sets Nomic
    Embed v2, 2025, arXiv:2502.07972), or if it is one of those positives. Rows with the same anchor are one
    query. Every row is kept, even without any negative left, and the remaining texts keep their scores.

    Example:
        filtered:
          filter_negatives:
            data: ./triplets.jsonl
            teachers: sentence-transformers/all-MiniLM-L6-v2
    """

    margin: Share = 0.95
    """Largest score of a negative as a share of the lowest score of a positive, 0 to 1."""

    def arranged(self, dataset: StoredDataset, workspace: Workspace) -> ArrangedSet:
        import numpy as np

        from emberge_data.steps.listed_set import ArrangedSet

        listed = ListedSet.of(dataset, workspace)
        if not len(listed.negatives.places):
            raise DataError(
                f"dataset '{listed.name}' has no negatives to filter; leave it out with `only`"
            )
        return ArrangedSet.of(listed, np.union1d(listed.positives.places, listed.negatives.places))

    def outcomes(
        self, number: int, arranged: ArrangedSet, spaces: Sequence[Space], workspace: Workspace
    ) -> Generator[Outcome, None, None]:
        is_kept = self._keep_negatives(arranged, spaces)
        starts = arranged.listed.negatives.starts
        for row, example in enumerate(rows_of(arranged.dataset)):
            row_is_kept = is_kept[starts[row] : starts[row + 1]]
            filtered = example if row_is_kept.all() else _drop_negatives(example, row_is_kept)
            yield Outcome(row, example, filtered, "negatives above the threshold are gone")

    def _keep_negatives(self, arranged: ArrangedSet, spaces: Sequence[Space]) -> NDArray[np.bool_]:
        """Return the mask of kept texts over the list of texts; only negatives can be false.

        Raises:
            DataError: if no negative is kept; the message has the scores.
        """
        import numpy as np

        from emberge_data.steps.negative_choice import lowest_positives, thresholds

        positives = arranged.lists(arranged.numbers(arranged.listed.positives))
        queries, negatives = arranged.numbers(arranged.listed.negatives)
        is_kept = np.ones(len(queries), dtype=bool)
        is_kept[~positives.lacks(queries, negatives)] = False
        seen = []
        for teacher, space in zip(self.teachers, spaces, strict=True):
            lowest = lowest_positives(space, np.arange(len(arranged.queries)), positives)
            scores = space.scores(queries, negatives)
            is_kept &= scores <= thresholds(lowest, self.margin)[queries]
            seen.append(
                f"{teacher.model} scores the lowest positives {describe_spread(lowest)} and negatives "
                f"{describe_spread(scores)}"
            )
        if not is_kept.any():
            raise DataError(
                f"dataset '{arranged.name}': every negative is above the threshold ({'; '.join(seen)}); "
                f"raise margin ({self.margin}), or mine others"
            )
        return is_kept


def _drop_negatives(example: Example, is_kept: NDArray[np.bool_]) -> Example:
    """Return the example with its kept negatives and their scores."""
    places = is_kept.nonzero()[0].tolist()
    scores = example.negative_scores
    return dataclasses.replace(
        example,
        negatives=tuple(example.negatives[number] for number in places),
        negative_scores=None if scores is None else tuple(scores[number] for number in places),
    )
