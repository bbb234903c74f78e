"""Selection of a model: the ranks of candidates, the choice, and the table of both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emberge import TaskInfo, TaskScore
from emberge.evaluating import FEW, parts_of_group
from emberge.wording import count_noun, prose, table_lines

# Points are decimal fractions: their differences in binary have errors of about 1e-14.
_ROUNDING = 1e-9
_GROUPS = {
    "all": "the mean over tasks",
    "kinds": "the mean over kinds of task",
    "ind": "the mean over tasks in domain",
    "ood": "the mean over tasks out of domain",
}


@dataclass(frozen=True)
class Ranked:
    """Model with `value` and `mean`, and `behind` and `mean_behind`, their distances to the best.

    Models are ranked by `value`. A point is a hundredth of a score or of a loss. `first` is True if the model
    was chosen for its rank, `near` if its mean is near enough to the best mean.
    """

    name: str
    value: float
    mean: float
    behind: float
    mean_behind: float
    first: bool
    near: bool

    @property
    def chosen(self) -> bool:
        """True if the model was selected by its rank or its mean."""
        return self.first or self.near


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


def choose(
    values: Mapping[str, float],
    means: Mapping[str, float],
    *,
    top: int,
    within: float | None,
    less: bool = False,
) -> RankedModels:
    """Choose the first `top` models by value, and those whose mean is at most `within` points from the best.

    If values are equal, the first model ranks higher. With `less` lower values are better. NaN ranks last.
    """
    oriented, mean = _orient_scores(values, less), _orient_scores(means, less)
    order = sorted(values, key=oriented.__getitem__, reverse=True)
    best, best_mean = oriented[order[0]], max(mean.values())
    ranking = []
    for position, name in enumerate(order):
        points_below = _count_points_below(best_mean, mean[name])
        ranking.append(
            Ranked(
                name=name,
                value=values[name],
                mean=means[name],
                behind=_count_points_below(best, oriented[name]),
                mean_behind=points_below,
                first=position < top,
                near=within is not None and points_below <= within + _ROUNDING,
            )
        )
    return RankedModels(tuple(ranking))


def _orient_scores(values: Mapping[str, float], less: bool) -> dict[str, float]:
    return {
        name: (-value if less else value) if math.isfinite(value) else -math.inf
        for name, value in values.items()
    }


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
    within: float | None = None
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
        return f"{text}, {second.behind:.2f} points ahead of {second.name}{interval_text}."

    def reason(self, ranked: Ranked) -> str:
        """Return the reason why a model was selected, as text; "" if it was not."""
        rank = self.choice.ranking.index(ranked) + 1
        reasons = [f"number {rank} by {self.by}"] if ranked.first else []
        if ranked.near:
            distance_text = (
                f"{ranked.mean_behind:.2f} points behind the best" if ranked.mean_behind else "best"
            )
            reasons.append(f"mean {distance_text}")
        return ", ".join(reasons)

    def table(self) -> str:
        """Return the ranking as Markdown."""
        lines = [prose(self.summary), "", *self._build_table_rows(), "", *self._draw_rule()]
        return "\n".join(lines) + "\n"

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

    def _draw_rule(self) -> Iterator[str]:
        names = ", ".join(task.name for task in self.tasks)
        yield f"Development data of {count_noun(len(self.tasks), 'task')}: {prose(names)}."
        if self.within is not None:
            yield (
                f"Also chosen: models whose mean over kinds of task is within {self.within:g} points of "
                "the best."
            )
        if self.losses:
            yield "Values are losses, of which less is better; a point is a hundredth."

    def _build_table_rows(self) -> list[str]:
        head, *rows = self._build_table_cells()
        return table_lines(head, rows, f"l{'r' * (len(head) - 2)}l")

    def _build_table_cells(self) -> list[list[str]]:
        """Return the cells of the table's head and rows, the best model first."""
        task_columns = [task.name for task in self.tasks] if 1 < len(self.tasks) <= FEW else []
        task_columns = [name for name in task_columns if name != self.by]
        has_means = any(ranked.value != ranked.mean for ranked in self.choice.ranking)
        head = ["model", self.by, "behind", *(["mean", "mean behind"] if has_means else ())]
        rows = [
            [
                ranked.name,
                *self._format_pair(ranked.value, ranked.behind),
                *(self._format_pair(ranked.mean, ranked.mean_behind) if has_means else ()),
                *(self._format_number(self.scores[ranked.name][name]) for name in task_columns),
                self.reason(ranked) or "–",
            ]
            for ranked in self.choice.ranking
        ]
        return [[*head, *task_columns, "chosen"], *rows]

    def _format_pair(self, value: float, behind: float) -> tuple[str, str]:
        return self._format_number(value), f"{behind:.2f}"

    def _format_number(self, value: float) -> str:
        return f"{value:.4f}" if self.losses else f"{100 * value:.2f}"

    def _show_value(self, value: float) -> float | None:
        if not math.isfinite(value):
            return None
        return round(value if self.losses else 100 * value, 4)
