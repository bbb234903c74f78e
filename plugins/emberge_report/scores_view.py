"""Scores in a page: a panel of dots for each task, facts of models, and charts over a number of models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from emberge.wording import count_noun
from emberge_evaluate import MEANS, Scores, Task

from emberge_report.formats import format_points

_DOMAINS = {"in": "in-domain", "out": "out-of-domain", "elsewhere": "elsewhere"}


@dataclass(frozen=True, slots=True)
class Dot:
    """Row of a panel: a model's score, and the places of its dot and interval in percent of the width."""

    model: str
    text: str
    at: float | None
    low: float | None
    width: float | None
    strong: bool


@dataclass(frozen=True, slots=True)
class Panel:
    """Scores on a task, or a mean of tasks; `ends` are the numbers at the left and the right."""

    title: str
    about: str
    dots: Sequence[Dot]
    reference: float | None
    ends: tuple[str, str]
    is_task: bool

    @property
    def label(self) -> str:
        """The panel in words."""
        return f"{self.title}: {'; '.join(f'{dot.model} {dot.text}' for dot in self.dots)}"


def draw_panels(scores: Scores) -> list[Panel]:
    """Return a panel for each task and mean, all of equal width, so that distances can be compared."""
    ranges = {on: _find_range(scores, on) for on in scores.rows}
    widest = max((high - low for low, high in ranges.values()), default=0.0) or 1e-9
    return [_draw_panel(scores, on, ranges[on], widest) for on in ranges]


def _find_range(scores: Scores, on: str) -> tuple[float, float]:
    ends = [scores.interval(model, on) or () for model in scores.models]
    values = [v for m in scores.models if (v := scores.value(m, on)) is not None]
    numbers = [*values, *(end for pair in ends for end in pair)] or [0.0]
    return min(numbers), max(numbers)


def _draw_panel(scores: Scores, on: str, ends: tuple[float, float], widest: float) -> Panel:
    width = 1.08 * widest
    left = (sum(ends) - width) / 2

    def place(value: float | None) -> float | None:
        return None if value is None else round(100 * (value - left) / width, 2)

    best, dots = scores.best(on), []
    for model in scores.models:
        value, (low, high) = scores.value(model, on), scores.interval(model, on) or (None, None)
        span = None if low is None or high is None else round(100 * (high - low) / width, 2)
        strong = value is not None and value == best
        dots.append(
            Dot(model, format_points(value, scores.less), place(value), place(low), span, strong)
        )
    task, reference = scores.task(on), scores.reference
    return Panel(
        title=MEANS.get(on, on),
        about=describe_task(task),
        dots=dots,
        reference=place(scores.value(reference, on)) if reference else None,
        ends=(format_points(left, scores.less), format_points(left + width, scores.less)),
        is_task=task is not None,
    )


def describe_task(task: Task | None) -> str:
    """Return a task's domain, metric and size in words; "" for a mean."""
    if task is None:
        return ""
    domain = _DOMAINS.get(task.domain or "", "")
    units = count_noun(task.units, task.unit) if task.units and task.unit else ""
    return ", ".join(word for word in (domain, task.metric, units) if word)


def list_facts(scores: Scores) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield a title and the text of each model for the columns before the scores."""
    if scores.costs:
        yield "Training cost", {m: f"{cost.times:.3g}" for m, cost in scores.costs.items()}
    if scores.ranks:
        yield ("Normalised rank, 0 is best", {m: f"{rank:.2f}" for m, rank in scores.ranks.items()})
