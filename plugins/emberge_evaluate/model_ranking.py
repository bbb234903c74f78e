"""Models ranked by their scores: the order, the sentence on the best one, and the ranking as a figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from emberge import TaskInfo
from emberge.contracts import Figure, HeatMap
from emberge.wording import count_noun

from emberge_evaluate.scores import Interval
from emberge_evaluate.task_groups import TASK_GROUPS

# What decides, by the word of a recipe.
_PHRASES = {group.word: group.phrase for group in TASK_GROUPS}


@dataclass(frozen=True)
class Ranked:
    """Model with its `value`, by which models are ranked, and `behind`, its distance to the best in points.

    A point is a hundredth of a score or of a loss.
    """

    name: str
    value: float
    behind: float


def rank_models(values: Mapping[str, float], *, less_is_better: bool = False) -> tuple[Ranked, ...]:
    """Return the models from the best to the worst.

    If values are equal, the first model ranks higher. NaN ranks last.
    """
    oriented = {
        name: (-value if less_is_better else value) if math.isfinite(value) else -math.inf
        for name, value in values.items()
    }
    order = sorted(values, key=oriented.__getitem__, reverse=True)
    best = oriented[order[0]]
    return tuple(Ranked(name, values[name], 100 * (best - oriented[name])) for name in order)


@dataclass(frozen=True)
class Selection:
    """The first `top` models of a ranking, with all models' scores by task.

    `by` is the recipe's word for the tasks that decided, and `interval` is the interval of the best model's
    lead over the second, in points.
    """

    ranking: tuple[Ranked, ...]
    top: int
    tasks: Sequence[TaskInfo]
    scores: Mapping[str, Mapping[str, float]]
    by: str = "all"
    interval: Interval | None = None
    losses: bool = False

    @property
    def chosen(self) -> tuple[Ranked, ...]:
        """Selected models, the best first."""
        return self.ranking[: self.top]

    @property
    def summary(self) -> str:
        """Sentence on the best model and its lead."""
        best, *others = self.ranking
        count = count_noun(len(self.ranking), "model")
        value = f"{best.value:.4f}" if self.losses else f"{100 * best.value:.2f}"
        text = f"{best.name} is the best of {count} by {self._title}: {value}"
        if not others:
            return f"{text}."
        second = others[0]
        if second.behind == 0:
            return f"{text}, which {second.name} has too; of equal models the first named is taken."
        interval_text = ""
        if self.interval is not None:
            interval_text = f" (95 % interval {self.interval[0]:+.2f} to {self.interval[1]:+.2f})"
        return f"{text}, {second.behind:.2f} points ahead of {second.name}{interval_text}."

    def build_figure(self) -> Figure:
        """Return the ranking as a figure of a report: what decided, and the scores on all tasks."""
        columns = [task.name for task in self.tasks if task.name != self.by]
        return Figure(
            title=f"Models by {self._title}",
            caption=self.summary,
            heat_map=HeatMap(
                rows=[ranked.name for ranked in self.ranking],
                columns=[self.by, *columns],
                values=[
                    [
                        self._show_value(ranked.value),
                        *(self._show_value(self.scores[ranked.name][name]) for name in columns),
                    ]
                    for ranked in self.ranking
                ],
            ),
        )

    @property
    def _title(self) -> str:
        if self.by in _PHRASES:
            return _PHRASES[self.by]
        is_task = any(task.name == self.by for task in self.tasks)
        return self.by if is_task else f"the mean over tasks of kind {self.by}"

    def _show_value(self, value: float) -> float | None:
        if not math.isfinite(value):
            return None
        return round(value if self.losses else 100 * value, 4)
