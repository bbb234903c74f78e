"""Scores in a page: a panel of dots for each row of the table of scores, and words about tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emberge.wording import count_noun
from emberge_evaluate import TITLE_BY_DOMAIN, ScoreCell, ScoredTask, ScoreRow, ScoreTable

from emberge_report.formats import format_difference, format_points


@dataclass(frozen=True, slots=True)
class Dot:
    """Row of a panel: a model's score, and the places of its dot and interval in percent of the width."""

    model: str
    text: str
    at: float | None
    low: float | None
    width: float | None
    is_best: bool


@dataclass(frozen=True, slots=True)
class Panel:
    """Scores on a task, or a mean of tasks; `ends` are the numbers at the left and the right."""

    title: str
    about: str
    dots: Sequence[Dot]
    reference: float | None
    ends: tuple[str, str]
    is_task: bool
    is_headline: bool

    @property
    def label(self) -> str:
        """The panel in words."""
        return f"{self.title}: {'; '.join(f'{dot.model} {dot.text}' for dot in self.dots)}"


def build_panels(table: ScoreTable) -> list[Panel]:
    """Return a panel for each task and mean, all of equal width, so that distances can be compared."""
    ranges = [_find_range(row) for row in table.rows]
    widest = max((high - low for low, high in ranges), default=0.0) or 1e-9
    return [
        _build_panel(table, row, ends, widest) for row, ends in zip(table.rows, ranges, strict=True)
    ]


def _find_range(row: ScoreRow) -> tuple[float, float]:
    """Return the lowest and the highest number of a row, ends of intervals included."""
    cells = row.cells.values()
    numbers = [cell.value for cell in cells if cell.value is not None]
    numbers += [end for cell in cells for end in cell.interval or ()]
    return min(numbers, default=0.0), max(numbers, default=0.0)


def _build_panel(
    table: ScoreTable, row: ScoreRow, ends: tuple[float, float], widest: float
) -> Panel:
    width = 1.08 * widest
    left = (sum(ends) - width) / 2

    def place(value: float | None) -> float | None:
        return None if value is None else round(100 * (value - left) / width, 2)

    dots = []
    for model, cell in row.cells.items():
        low, high = cell.interval or (None, None)
        span = None if low is None or high is None else round(100 * (high - low) / width, 2)
        text = format_points(cell.value, table.less_is_better)
        dots.append(Dot(model, text, place(cell.value), place(low), span, cell.is_best))
    return Panel(
        title=row.title,
        about=describe_task(row.task),
        dots=dots,
        reference=dots[0].at if dots else None,
        ends=(
            format_points(left, table.less_is_better),
            format_points(left + width, table.less_is_better),
        ),
        is_task=row.task is not None,
        is_headline=row.is_headline,
    )


def describe_task(task: ScoredTask | None) -> str:
    """Return a task's domain, metric and size in words; "" for a mean."""
    if task is None:
        return ""
    domain = TITLE_BY_DOMAIN.get(task.domain or "", "").lower().replace(" ", "-")
    units = count_noun(task.units, task.unit) if task.units and task.unit else ""
    return ", ".join(word for word in (domain, task.metric, units) if word)


def format_fact(cell: ScoreCell, row: ScoreRow, less_is_better: bool) -> str:
    """Return the text of a figure of a whole model: its forgetting or its training cost."""
    if cell.value is None or row.quantity == "cost":
        return "–" if cell.value is None else f"{cell.value:.3g}"
    return format_difference(cell.value, less_is_better, cell.interval)
