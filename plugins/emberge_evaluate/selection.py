"""Selection of a model: the ranks of candidates, the choice, and the figure of both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emberge import TaskInfo, TaskScore
from emberge.evaluating import FEW, parts_of_group
from emberge.wording import count_noun

_GROUPS = {
    "all": "the mean over tasks",
    "kinds": "the mean over kinds of task",
    "ind": "the mean over tasks in domain",
    "ood": "the mean over tasks out of domain",
}


@dataclass(frozen=True)
class Ranked:
    """Model with its `value`, by which models are ranked, and `behind`, its distance to the best in points.

    A point is a hundredth of a score or of a loss.
    """

    name: str
    value: float
    behind: float
    chosen: bool


@dataclass(frozen=True)
class RankedModels:
    """All models from the best to the worst."""

    ranking: tuple[Ranked, ...]

    @property
    def best(self) -> Ranked:
        """Model of the first rank."""
        return self.ranking[0]

    @property
    def second(self) -> Ranked | None:
        """Model of the second rank; None for a single model."""
        return self.ranking[1] if len(self.ranking) > 1 else None

    @property
    def chosen(self) -> tuple[Ranked, ...]:
        """Selected models, the best first."""
        return tuple(ranked for ranked in self.ranking if ranked.chosen)


def choose(values: Mapping[str, float], *, top: int, less: bool = False) -> RankedModels:
    """Choose the first `top` models by value.

    If values are equal, the first model ranks higher. With `less` lower values are better. NaN ranks last.
    """
    oriented = {
        name: (-value if less else value) if math.isfinite(value) else -math.inf
        for name, value in values.items()
    }
    order = sorted(values, key=oriented.__getitem__, reverse=True)
    best = oriented[order[0]]
    return RankedModels(
        tuple(
            Ranked(name, values[name], _count_points_below(best, oriented[name]), position < top)
            for position, name in enumerate(order)
        )
    )


def _count_points_below(best: float, value: float) -> float:
    """Return the points (hundredths) by which a value is below the best."""
    return 100 * (best - value) if math.isfinite(value) else math.inf


def value_of(tasks: Sequence[TaskInfo], scores: Mapping[str, TaskScore], group: str) -> float:
    """Return a model's mean over a group of tasks: over their kinds for "type", else over the tasks."""
    means = [
        sum(scores[task.name].score for task in part) / len(part)
        for part in parts_of_group(tasks, group)
    ]
    return sum(means) / len(means)


@dataclass(frozen=True)
class Selection:
    """Selection of models with its scores and reasons, for tables and reports.

    `scores` has each model's scores by task, `by` is the recipe's word for the tasks that decided, and
    `interval` is the interval of the best model's lead over the second, in points.
    """

    choice: RankedModels
    tasks: Sequence[TaskInfo]
    scores: Mapping[str, Mapping[str, float]]
    by: str = "all"
    interval: tuple[float, float] | None = None
    losses: bool = False

    @property
    def summary(self) -> str:
        """Sentence on the best model and its lead."""
        best, second = self.choice.best, self.choice.second
        of = count_noun(len(self.choice.ranking), "model")
        text = f"{best.name} is the best of {of} by {self._build_title}: {self._format_number(best.value)}"
        if second is None:
            return f"{text}."
        interval_text = ""
        if self.interval is not None:
            interval_text = f" (95 % interval {self.interval[0]:+.2f} to {self.interval[1]:+.2f})"
        if second.behind == 0:
            return f"{text}, which {second.name} has too; of equal models the first named is taken."
        return f"{text}, {second.behind:.2f} points ahead of {second.name}{interval_text}."

    def reason(self, ranked: Ranked) -> str:
        """Return the reason why a model was selected, as text; "" if it was not."""
        rank = self.choice.ranking.index(ranked) + 1
        return f"number {rank} by {self.by}" if ranked.chosen else ""

    def figure(self) -> dict[str, Any]:
        """Return the ranking as a figure of a report: a chart of scores and their table."""
        names = [ranked.name for ranked in self.choice.ranking]
        columns = [task.name for task in self.tasks]
        head, *rows = self._build_table_cells()
        return {
            "title": f"Models by {self._build_title}",
            "caption": self.summary,
            "heat_map": {
                "rows": names,
                "columns": columns,
                "values": [[self._show_value(self.scores[n][c]) for c in columns] for n in names],
            },
            "table": {"title": "Ranking, and what was chosen", "head": head, "rows": rows},
        }

    @property
    def _build_title(self) -> str:
        if self.by in _GROUPS:
            return _GROUPS[self.by]
        named = any(task.name == self.by for task in self.tasks)
        return self.by if named else f"the mean over tasks of kind {self.by}"

    def _build_table_cells(self) -> list[list[str]]:
        """Return the cells of the table's head and rows, the best model first."""
        task_columns = [task.name for task in self.tasks] if 1 < len(self.tasks) <= FEW else []
        task_columns = [name for name in task_columns if name != self.by]
        head = ["model", self.by, "behind"]
        rows = [
            [
                ranked.name,
                self._format_number(ranked.value),
                f"{ranked.behind:.2f}",
                *(self._format_number(self.scores[ranked.name][name]) for name in task_columns),
                self.reason(ranked) or "–",
            ]
            for ranked in self.choice.ranking
        ]
        return [[*head, *task_columns, "chosen"], *rows]

    def _format_number(self, value: float) -> str:
        return f"{value:.4f}" if self.losses else f"{100 * value:.2f}"

    def _show_value(self, value: float) -> float | None:
        if not math.isfinite(value):
            return None
        return round(value if self.losses else 100 * value, 4)
