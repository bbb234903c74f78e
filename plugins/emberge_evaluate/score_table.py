"""The table of an evaluation, built once and drawn as Markdown, in a page and in a card.

Rows are tasks and means over tasks, columns are models or arms of models.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from emberge.wording import count_noun

from emberge_evaluate.scores import Interval, ScoredTask, Scores
from emberge_evaluate.task_groups import TITLE_BY_DOMAIN, TITLE_BY_MEAN, read_group_kind

SINGLE_RUNS = (
    "Trainings behind these scores are single runs: another seed gives other scores, and the intervals "
    "above do not cover that."
)
Quantity = Literal["score", "difference", "cost"]


@dataclass(frozen=True, slots=True)
class ScoreCell:
    """Number of a model in a row, a share or a loss, with its uncertainty; None if it is unknown."""

    value: float | None = None
    interval: Interval | None = None
    spread: float | None = None
    """Standard deviation over seeds; None without several seeds."""
    by_seed: tuple[float, ...] = ()
    """Differences for each seed, if both arms have the same seeds or one is a single model."""
    verdict: str = ""
    """Conclusion on a difference, as `Scores.conclude` returns it."""
    is_best: bool = False
    """True for the best number of a row whose numbers differ."""


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """Row of a table: a cell for each model, by name; `task` is None for means and facts of models."""

    title: str
    cells: Mapping[str, ScoreCell]
    task: ScoredTask | None = None
    quantity: Quantity = "score"
    is_headline: bool = True
    """False for a task whose domain, or else the whole table, has a mean."""


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """Table of scores, or of differences from `reference`; `less_is_better` is True for losses.

    Rows are those in domain, out of domain and elsewhere, each after their mean; the mean over all tasks is
    the last. `facts` are about whole models: what they forgot, and the costs of their training.
    """

    models: tuple[str, ...]
    rows: tuple[ScoreRow, ...]
    less_is_better: bool
    reference: str | None = None
    facts: tuple[ScoreRow, ...] = ()

    @property
    def has_intervals(self) -> bool:
        """True if any number of a task or mean has an interval."""
        return any(cell.interval for row in self.rows for cell in row.cells.values())


def build_table(scores: Scores) -> ScoreTable:
    """Return the table of all scores and of the facts of models."""
    less, rows = scores.less_is_better, _build_rows(scores, scores.models)
    rows = tuple(_mark_best(row, less_is_better=less) for row in rows)
    return ScoreTable(scores.models, rows, less, facts=tuple(_build_facts(scores)))


def build_difference_tables(scores: Scores) -> Iterator[ScoreTable]:
    """Yield the tables of differences from the first model, then from each other one that is compared with.

    There is no table for a single model.
    """
    if others := scores.models[1:]:
        yield _build_difference_table(scores, others, scores.models[0])
    for reference in scores.further_references:
        yield _build_difference_table(scores, scores.list_compared(reference), reference)


def _build_difference_table(scores: Scores, models: tuple[str, ...], reference: str) -> ScoreTable:
    return ScoreTable(
        models, _build_rows(scores, models, reference), scores.less_is_better, reference
    )


def _build_rows(
    scores: Scores, models: tuple[str, ...], reference: str | None = None
) -> tuple[ScoreRow, ...]:
    """Return a row for each task and shown mean, by domain."""
    titles = list_shown_means(scores)

    def build(task_or_mean: str, task: ScoredTask | None = None) -> ScoreRow:
        cells = {model: _read_cell(scores, model, task_or_mean, reference) for model in models}
        is_headline = task is None or (task.domain or "task") not in titles
        quantity: Quantity = "score" if reference is None else "difference"
        title = titles[task_or_mean] if task is None else task.name
        return ScoreRow(title, cells, task, quantity, is_headline)

    rows: list[ScoreRow] = []
    for domain in (*TITLE_BY_DOMAIN, None):
        rows += [build(mean) for mean in titles if mean == domain]
        rows += [build(task.name, task) for task in scores.tasks if task.domain == domain]
    return (*rows, *(build(mean) for mean in titles if mean not in TITLE_BY_DOMAIN))


def _read_cell(scores: Scores, model: str, task_or_mean: str, reference: str | None) -> ScoreCell:
    """Return a model's score, or its difference from a reference."""
    if reference is None:
        interval = scores.find_interval(model, task_or_mean)
        spread = scores.find_spread(model, task_or_mean)
        return ScoreCell(scores.find_value(model, task_or_mean), interval, spread)
    comparison = scores.find_difference(model, task_or_mean, reference)
    if comparison is None:
        return ScoreCell()
    by_seed = tuple((comparison.by_seed or {}).values())
    numbers = (comparison.difference, comparison.interval, None, by_seed)
    return ScoreCell(*numbers, scores.conclude(comparison))


def _mark_best(row: ScoreRow, *, less_is_better: bool) -> ScoreRow:
    """Return a row whose best numbers, to 0.01 points, are marked, unless all are equal."""
    values = {n: round(cell.value, 4) for n, cell in row.cells.items() if cell.value is not None}
    if len(set(values.values())) < 2:
        return row
    best = (min if less_is_better else max)(values.values())
    cells = {n: replace(cell, is_best=values.get(n) == best) for n, cell in row.cells.items()}
    return replace(row, cells=cells)


def _build_facts(scores: Scores) -> Iterator[ScoreRow]:
    """Yield the rows of forgetting and training costs, as far as they are known."""
    if scores.forgetting:
        group = TITLE_BY_DOMAIN[scores.forgetting[0].task_or_mean].lower()
        lost = {model: scores.find_forgotten(model) for model in scores.models}
        cells = {
            m: ScoreCell(one.mean, one.interval) if one else ScoreCell() for m, one in lost.items()
        }
        yield ScoreRow(f"forgetting, {group} (less is better)", cells, quantity="difference")
    if scores.costs:
        costs = {model: scores.costs.get(model) for model in scores.models}
        cells = {model: ScoreCell(cost.times if cost else None) for model, cost in costs.items()}
        all_rows = count_noun(max(cost.of for cost in scores.costs.values()), "row")
        yield ScoreRow(f"training cost (1: one training on {all_rows})", cells, quantity="cost")


def list_shown_means(scores: Scores) -> dict[str, str]:
    """Map each known mean that repeats neither one task's score nor another mean to its title."""
    kinds, domains = ({getattr(task, key) for task in scores.tasks} for key in ("kind", "domain"))
    shown: dict[str, str] = {}
    for mean in sorted(scores.known_means, key=lambda mean: mean == "task"):  # which is the last
        kind, count = read_group_kind(mean), _count_tasks(scores, mean)
        is_repeat = {"type": len(kinds) < 2, "task": len(domains) < 2 and None not in domains}.get(
            mean, kind is not None and count == len(scores.tasks)
        )
        if count > 1 and not is_repeat:
            shown[mean] = TITLE_BY_MEAN[mean] if kind is None else f"mean of {kind} ({count})"
    return shown


def _count_tasks(scores: Scores, mean: str) -> int:
    """Return the number of tasks that a mean is over: those of a kind, of a domain, or all."""
    if (kind := read_group_kind(mean)) is not None:
        return sum(task.kind == kind for task in scores.tasks)
    return sum(mean not in TITLE_BY_DOMAIN or task.domain == mean for task in scores.tasks)


def list_records(scores: Scores) -> Iterator[dict[str, Any]]:
    """Yield the scores as JSON: for each model a record for each task, then one for each mean."""
    task_by_name = {task.name: task for task in scores.tasks}
    titles = {name: name for name in task_by_name} | list_shown_means(scores)
    for model in scores.models:
        for task_or_mean, title in titles.items():
            value, task = scores.find_value(model, task_or_mean), task_by_name.get(task_or_mean)
            if value is not None and math.isfinite(value):
                low, high = scores.find_interval(model, task_or_mean) or (None, None)
                yield {
                    "model": model,
                    "task": title,
                    "domain": task.domain if task is not None else None,
                    "metric": task.metric if task is not None else None,
                    **{"score": value, "low": low, "high": high},
                }
