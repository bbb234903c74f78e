"""Scores during a training, which decide when it stops and which of its parameters are the result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from emberge.training.fit_options import EarlyStopping


@dataclass(eq=False)
class ScoreHistory:
    """Scores of a training so far, and its best parameters, copied to the CPU; saved states have both."""

    rule: EarlyStopping | None
    steps: int
    scores: list[tuple[int, float]] = field(default_factory=list)
    best_weights: dict[str, Tensor] = field(default_factory=dict)

    def is_due(self, step: int) -> bool:
        """Return whether the parameters of this step will be scored."""
        return self.rule is not None and (step % self.rule.every == 0 or step == self.steps)

    @property
    def best(self) -> tuple[int, float] | None:
        """Step and score of the best parameters (the first of equals); None before the first score."""
        return max(self.scores, key=lambda scored: scored[1], default=None)

    @property
    def stopped(self) -> bool:
        """True if the last `patience` scores were not better than the best score before them."""
        if self.rule is None or self.rule.patience is None or self.best is None:
            return False
        scores_since_best = sum(step > self.best[0] for step, _ in self.scores)
        return scores_since_best >= self.rule.patience

    def restore(self, scores: Sequence[Sequence[float]]) -> None:
        """Replace the scores by those of a saved state."""
        self.scores = [(int(step), float(score)) for step, score in scores]

    def add_score(self, step: int, score: float, parameters: Mapping[str, Tensor]) -> None:
        """Add the score that the trainee computed, and copy its parameters if the score is the best.

        A score that is not finite counts as minus infinity, so that it is never the best.
        """
        score = score if math.isfinite(score) else -math.inf
        self.scores.append((step, score))
        if self.best == (step, score):
            self.best_weights = {
                name: p.detach().to("cpu", copy=True) for name, p in parameters.items()
            }
