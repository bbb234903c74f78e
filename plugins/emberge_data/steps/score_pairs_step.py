"""The `score_pairs` step: a teacher's scores of every positive and negative."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from emberge import Workspace

from emberge_data.steps.compared_set import ComparedSet, TextPairs, list_rows
from emberge_data.steps.outcome import Outcome
from emberge_data.steps.teacher import TaughtStep

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from emberge_data.steps.teacher import OpenTeacher


@dataclass(frozen=True, kw_only=True)
class ScorePairs(TaughtStep):
    """Add a teacher's score, from 0 to 1, to every positive and negative.

    The teacher is an encoder, which scores by cosines, or a cross-encoder, which reads both texts together: a
    folder of sentence-transformers' CrossEncoder, or a sequence classification of transformers with one
    output. Scores are what the losses `margin_mse` (Hofstätter et al., 2020, arXiv:2010.02666) and
    `kl_distillation` learn from. A cross-encoder's logit x becomes 1 / (1 + e^-x), and a cosine c becomes (1
    + c) / 2. Scores that the sets already have are replaced.

    A cross-encoder's `max_length` counts the tokens of both texts together, and prompts are put before texts
    only if the teacher's options set them. The table counts rows in which a negative has a higher score than
    a positive: either the row or the teacher may be wrong.

    Example:
        scored:
          score_pairs:
            data: ./pairs.jsonl
            teacher: {model: cross-encoder/ms-marco-MiniLM-L6-v2}
    """

    scores_pairs: ClassVar[bool] = True

    def compare(self, compared: ComparedSet, teacher: OpenTeacher) -> NDArray[np.float64]:
        """Return the scores of all positives, then of all negatives."""
        import numpy as np

        sides = compared.positives, compared.negatives
        queries, documents = (
            np.concatenate([getattr(pairs, name) for pairs in sides])
            for name in ("queries", "documents")
        )
        rows = np.concatenate([pairs.rows for pairs in sides])
        scores = teacher.score_pairs(compared, TextPairs(rows, queries, documents)).astype(float)
        if teacher.kind != "pair_score":
            return (1 + scores) / 2
        exponentials = np.exp(-abs(scores))
        shares: NDArray[np.float64] = np.where(scores >= 0, 1.0, exponentials) / (1 + exponentials)
        return shares

    def judge(
        self, compared: ComparedSet, values: NDArray[np.float64], workspace: Workspace
    ) -> Generator[Outcome, None, str]:
        from emberge_data.steps.similarity import describe_spread

        sides = compared.positives, compared.negatives
        scores = values[: len(sides[0].rows)], values[len(sides[0].rows) :]
        split = (
            pairs.split(values, len(compared.dataset))
            for pairs, values in zip(sides, scores, strict=True)
        )
        rows = zip(list_rows(compared.dataset), *split, strict=True)
        for row, (example, positives, negatives) in enumerate(rows):
            after = dataclasses.replace(
                example,
                positive_scores=tuple(positives.tolist()),
                negative_scores=tuple(negatives.tolist()),
            )
            is_inverted = len(negatives) and negatives.max() > positives.min()
            note = "scored, a negative above a positive" if is_inverted else "scored"
            yield Outcome(row, example, after, note)
        return (
            f"{compared.name}: positives score {describe_spread(scores[0])}, negatives "
            f"{describe_spread(scores[1])}."
        )
