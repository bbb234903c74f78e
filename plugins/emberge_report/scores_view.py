"""Scores in a page: a panel of dots for each task, facts of models, and charts over a number of models."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from emberge.evaluating import MEANS, ScoreCurve, Scores, Task
from emberge.wording import count_noun
from markupsafe import Markup

from emberge_report.charts import NEUTRAL, Line, Look, line_chart, looks
from emberge_report.formats import points

Looks = Mapping[str, Look]
_DOMAINS = {"in": "in-domain", "out": "out-of-domain", "elsewhere": "elsewhere"}
# More levels than this to compare with would hide the curves.
_MOST_LEVELS = 4


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
    ranges = {on: _find_range(scores, on) for on in scores.columns()}
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
        dots.append(Dot(model, points(value, scores.less), place(value), place(low), span, strong))
    task, reference = scores.task(on), scores.reference
    return Panel(
        title=MEANS.get(on, on),
        about=describe_task(task),
        dots=dots,
        reference=place(scores.value(reference, on)) if reference else None,
        ends=(points(left, scores.less), points(left + width, scores.less)),
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
        yield (
            "Normalised rank, 0 is best",
            {m: f"{rank:.2f}" for m, rank in scores.ranks.items()},
        )


@dataclass(frozen=True, slots=True)
class Curves:
    """Scores over one number that models were made with: charts, and a row for each place of a curve."""

    title: str
    axis: str
    charts: Sequence[Markup]
    means: Sequence[str]
    rows: Sequence[tuple[str, str, int, Sequence[tuple[str, str]]]]


def draw_curves(scores: Scores, merged: Collection[str], looks_by_model: Looks) -> list[Curves]:
    """Return charts for each variable, one for each mean that sums up a run.

    Models in `merged` that are on no curve are drawn as levels.
    """
    found = []
    for variable in dict.fromkeys(curve.variable for curve in scores.curves):
        curves = [curve for curve in scores.curves if curve.variable == variable]
        models = {name for curve in curves for point in curve.places for name in point.models}
        axis = "ratio, %" if variable == "ratio" else variable
        means = [
            on for on in scores.headlines() if all(on in p.means for c in curves for p in c.places)
        ]
        levels = [name for name in _list_levels(scores, merged) if models.isdisjoint(name[1])]
        charts = [
            _draw_mean(scores, curves, on, axis, [name for name, _ in levels], looks_by_model)
            for on in means
        ]
        rows = [*_list_rows(scores, curves, means)]
        titles = [MEANS[on] for on in means]
        found.append(Curves(f"Scores by {variable}", axis, charts, titles, rows))
    return found


def _list_levels(scores: Scores, merged: Collection[str]) -> Iterator[tuple[str, set[str]]]:
    """Yield each merge, or arm of merges, and its models."""
    pooled = scores.pooled or scores
    for name in pooled.models:
        members = set(pooled.members_of(name))
        if members <= set(merged):
            yield name, members


def _draw_mean(
    scores: Scores,
    curves: Sequence[ScoreCurve],
    on: str,
    axis: str,
    levels: Sequence[str],
    looks_by_model: Looks,
) -> Markup:
    pooled, scale = scores.pooled or scores, scores.scale
    known = {name: v for name in levels if (v := pooled.value(name, on)) is not None}
    known = dict([*known.items()][:_MOST_LEVELS])
    used = {looks_by_model.get(name, NEUTRAL).style for name in known}
    free = [look for look in looks(map(str, range(8))).values() if look.style not in used]
    lines, words = [], []
    for curve, look in zip(curves, [*free, *[NEUTRAL] * len(curves)], strict=False):
        places = [(_place(curve, point.at), point.means[on]) for point in curve.places]
        intervals = [
            (at, scale * one.interval[0], scale * one.interval[1])
            for at, one in places
            if one.interval is not None
        ]
        dots = [(at, scale * one.mean) for at, one in places]
        lines.append(Line(curve.name, look, dots, intervals=intervals, marked=True))
        numbers = (f"{at:g} {points(one.mean, scores.less)}" for at, one in places)
        words.append(f"{curve.name} {', '.join(numbers)}")
    ends = [at for line in lines for at, _ in line.points]
    for name, value in known.items():
        level = [(min(ends), scale * value), (max(ends), scale * value)]
        lines.append(Line(name, looks_by_model.get(name, NEUTRAL), level, level=True))
    return line_chart(
        lines,
        x=axis,
        y=f"{MEANS[on]} of losses" if scores.less else f"{MEANS[on]} ×100",
        label=f"{MEANS[on]} by {axis}: {'; '.join(words)}",
    )


def _list_rows(
    scores: Scores, curves: Sequence[ScoreCurve], means: Sequence[str]
) -> Iterator[tuple[str, str, int, Sequence[tuple[str, str]]]]:
    """Yield the curve, place, number of models, and each mean with its interval."""
    for curve in curves:
        for point in curve.places:
            estimates = [point.means[on] for on in means]
            cells = [
                (
                    points(one.mean, scores.less),
                    " – ".join(points(end, scores.less) for end in one.interval or ()),
                )
                for one in estimates
            ]
            yield curve.name, f"{_place(curve, point.at):g}", len(point.models), cells


def _place(curve: ScoreCurve, at: float) -> float:
    """Return a place on the x axis; ratios are in percent."""
    return round(100 * at, 6) if curve.variable == "ratio" else at
