"""The `filter_negatives` step: negatives that a teacher takes for positives are removed."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Share, Workspace

from emberge_data.steps.compared_set import ComparedSet, list_rows
from emberge_data.steps.outcome import Outcome, drop_texts
from emberge_data.steps.teacher import TaughtStep

if TYPE_CHECKING:
    from emberge_data.steps.similarity import VectorSimilarity


@dataclass(frozen=True, kw_only=True)
class FilterNegatives(TaughtStep):
    """Filter that removes the negatives which a teacher takes for positives.

    A negative is removed if the teacher scores it above the threshold of `mine_hard_negatives`, which follows
    from the lowest score of the query's positives (NV-Retriever, 2024, arXiv:2407.15831; for mined sets Nomic
    Embed v2, 2025, arXiv:2502.07972), or if it is one of those positives. Rows with the same anchor are one
    query. Every row is kept, even without any negative left, and the remaining texts keep their scores.

    Example:
        filtered:
          filter_negatives:
            data: ./triplets.jsonl
            teacher: sentence-transformers/all-MiniLM-L6-v2
    """

    margin: Share = 0.95
    """Largest score of a negative as a share of the lowest score of a positive, 0 to 1."""

    def judge(
        self, compared: ComparedSet, similarity: VectorSimilarity, workspace: Workspace
    ) -> Generator[Outcome, None, None]:
        import numpy as np

        from emberge_data.steps.similarity import find_lowest_scores, find_thresholds

        positives, negatives = compared.positives, compared.negatives
        lowest = find_lowest_scores(
            positives,
            similarity.score(positives.queries, positives.documents),
            len(compared.queries),
        )
        scores = similarity.score(negatives.queries, negatives.documents)
        is_kept = scores <= find_thresholds(lowest, self.margin)[negatives.queries]
        keys, of_positives = (
            pairs.queries * len(compared.documents) + pairs.documents
            for pairs in (negatives, positives)
        )
        is_kept &= ~np.isin(keys, of_positives)
        rows = negatives.split(is_kept, len(compared.dataset))
        for row, (example, kept) in enumerate(zip(list_rows(compared.dataset), rows, strict=True)):
            after = drop_texts(example, "negative", {*np.flatnonzero(~kept).tolist()})
            yield Outcome(row, example, after, "negatives above the threshold are gone")
