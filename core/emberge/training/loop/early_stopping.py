"""Scores that a training takes of itself on the way: when it stops, and which of its models is the result."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from emberge.devices import torch_threads
from emberge.files.atomic import clear_torn, link_or_copy, replace_folder

__all__ = ["EarlyStopping", "ScoreHistory"]


@dataclass(frozen=True)
class EarlyStopping:
    """How a training is scored on the way, and what follows from it.

    After `every` steps and after the last one `score(folder, step)` gives one number, the larger the better,
    of the model (or the adapter) that was written into a folder. After `patience` scores in turn that are no
    better than the best before them the training ends; None lets it go on. With `best` the first of the
    best models is the result, else the last one. `identity` names all that a score depends on beside the
    model: a state is only continued under the same one.
    """

    every: int
    score: Callable[[Path, int], float] = field(repr=False)
    identity: str
    patience: int | None = None
    best: bool = True


@dataclass(eq=False)
class ScoreHistory:
    """The scores that were taken until now, and the best model in `folder`.

    A score follows from the steps before it, and is part of the states that are saved. The best models of
    the two newest states are kept: whichever of them a killed training goes on from, it finds its own.
    """

    watch: EarlyStopping | None
    steps: int
    folder: Path
    scores: list[tuple[int, float]] = field(default_factory=list)
    _before: Path | None = None

    def is_due(self, step: int) -> bool:
        """Whether the model of this step is to be scored."""
        return self.watch is not None and (step % self.watch.every == 0 or step == self.steps)

    @property
    def best(self) -> tuple[int, float] | None:
        """(step, score) of the best model, the earliest of equal ones; None before the first score."""
        return max(self.scores, key=lambda scored: scored[1], default=None)

    @property
    def stopped(self) -> bool:
        """Whether the last scores were too long no better than one before them."""
        if self.watch is None or self.watch.patience is None or self.best is None:
            return False
        since = sum(step > self.best[0] for step, _ in self.scores)
        return since >= self.watch.patience

    @property
    def leads(self) -> bool:
        """Whether the best model is to be the result."""
        return self.watch is not None and self.watch.best and bool(self.scores)

    def restore(self, scores: Sequence[Sequence[float]]) -> None:
        """Go on from the scores of a state."""
        self.scores = [(int(step), float(score)) for step, score in scores]
        self._before = self._leader()

    def write(self, step: int, save: Callable[[Path], None]) -> None:
        """Write the model that is to be scored."""
        replace_folder(self._at(step), save)

    def take(self, step: int) -> list[tuple[int, float]]:
        """Score the model of a step, and give all scores; random numbers and threads stay as they were."""
        assert self.watch is not None
        with torch.random.fork_rng(), torch_threads(torch.get_num_threads()):
            score = float(self.watch.score(self._at(step), step))
        # What is no number is no better than anything.
        return [*self.scores, (step, score if math.isfinite(score) else -math.inf)]

    def saved(self) -> None:
        """A state was saved: remove the models that none of the two newest states needs."""
        clear_torn(self.folder)
        leader = self._leader()
        for path in self.folder.glob("step-*") if self.folder.is_dir() else ():
            if path not in (leader, self._before):
                shutil.rmtree(path)
        self._before = leader

    def hand_over(self, folder: Path) -> None:
        """Put the best model into a result."""
        best = self._leader()
        assert best is not None
        shutil.copytree(best, folder, copy_function=link_or_copy, dirs_exist_ok=True)

    def _leader(self) -> Path | None:
        return self._at(self.best[0]) if self.leads and self.best is not None else None

    def _at(self, step: int) -> Path:
        return self.folder / f"step-{step}"
