"""Scores during a training, which decide when it stops and which of its models is the result."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from emberge.devices import limit_torch_threads
from emberge.files import clear_torn, link_or_copy, replace_folder
from emberge.training.fit_options import EarlyStopping


@dataclass(eq=False)
class ScoreHistory:
    """Scores of a training so far, and its best model: in `folder`, or as `best_weights` in memory.

    Scores are part of the saved states. The best models of the two newest states are kept, so that a killed
    training finds its best model when it resumes from either state.
    """

    rule: EarlyStopping | None
    steps: int
    folder: Path
    scores: list[tuple[int, float]] = field(default_factory=list)
    best_weights: dict[str, Tensor] = field(default_factory=dict)
    """Copies of the best parameters on the CPU, if the trainee scores itself."""
    _kept_before: Path | None = None

    def is_due(self, step: int) -> bool:
        """Return whether the model of this step will be scored."""
        return self.rule is not None and (step % self.rule.every == 0 or step == self.steps)

    @property
    def is_in_memory(self) -> bool:
        """True if the trainee scores itself, so that no model is written for scoring."""
        return self.rule is not None and self.rule.score is None

    @property
    def best(self) -> tuple[int, float] | None:
        """Step and score of the best model (the first of equal models); None before the first score."""
        return max(self.scores, key=lambda scored: scored[1], default=None)

    @property
    def stopped(self) -> bool:
        """True if the last `patience` scores were not better than the best score before them."""
        if self.rule is None or self.rule.patience is None or self.best is None:
            return False
        scores_since_best = sum(step > self.best[0] for step, _ in self.scores)
        return scores_since_best >= self.rule.patience

    def restore(self, scores: Sequence[Sequence[float]]) -> None:
        """Replace the scores by those of a saved state, whose best model is kept with that state."""
        self.take_scores(scores)
        self._kept_before = self._find_best_folder()

    def take_scores(self, scores: Sequence[Sequence[float]]) -> None:
        """Replace the scores by those of this step, which the first rank returned to all as JSON."""
        self.scores = [(int(step), float(score)) for step, score in scores]

    def add_score(self, step: int, score: float, parameters: Mapping[str, Tensor]) -> None:
        """Add the score that the trainee computed, and copy its parameters if the score is the best."""
        score = _order_not_finite(score)
        self.scores.append((step, score))
        if self.best == (step, score):
            self.best_weights = {
                name: p.detach().to("cpu", copy=True) for name, p in parameters.items()
            }

    def write_model(self, step: int, save: Callable[[Path], None]) -> None:
        """Write the model of a step, to be scored."""
        replace_folder(self._build_step_folder(step), save)

    def score_model(self, step: int) -> list[tuple[int, float]]:
        """Score the model of a step and return all scores; random state and threads are restored."""
        assert self.rule is not None
        assert self.rule.score is not None
        with torch.random.fork_rng(), limit_torch_threads(torch.get_num_threads()):
            score = float(self.rule.score(self._build_step_folder(step), step))
        return [*self.scores, (step, _order_not_finite(score))]

    def drop_unneeded(self) -> None:
        """Remove the models that neither of the two newest states needs; call this after saving a state."""
        clear_torn(self.folder)
        leader = self._find_best_folder()
        for path in self.folder.glob("step-*") if self.folder.is_dir() else ():
            if path not in (leader, self._kept_before):
                shutil.rmtree(path)
        self._kept_before = leader

    def copy_into(self, folder: Path) -> None:
        """Put the best model into a result."""
        best = self._find_best_folder()
        assert best is not None
        shutil.copytree(best, folder, copy_function=link_or_copy, dirs_exist_ok=True)

    def _find_best_folder(self) -> Path | None:
        return self._build_step_folder(self.best[0]) if self.best is not None else None

    def _build_step_folder(self, step: int) -> Path:
        return self.folder / f"step-{step}"


def _order_not_finite(score: float) -> float:
    """Return the score, or minus infinity if it is not finite, so that it is never the best."""
    return score if math.isfinite(score) else -math.inf
