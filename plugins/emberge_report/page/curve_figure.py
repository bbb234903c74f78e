"""Charts of scores over a numeric variable of models, such as the share of data in bags."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from emberge.evaluating import MEANS, CurvePoint, ScoreCurve, Scores

from emberge_report.charts.line_chart import Chart, Line, line_chart
from emberge_report.charts.markup import Markup, tag
from emberge_report.charts.svg import NEUTRAL, MarkerStyle, looks, number
from emberge_report.page.tables import left, points, table

# More levels than this to compare with would hide the curves.
_MOST_LEVELS = 4


def curve_figures(
    scores: Scores, merged: Collection[str], looks_by_model: Mapping[str, MarkerStyle]
) -> Markup | None:
    """Return a chart for each variable and headline mean, with the numbers below; None without a curve.

    Models in `merged` that are on no curve are drawn as levels, in their `known` marker styles.
    """
    variables = dict.fromkeys(curve.variable for curve in scores.curves)
    if not variables:
        return None
    return tag(
        "div", [_draw_variable(scores, variable, merged, looks_by_model) for variable in variables]
    )


def _draw_variable(
    scores: Scores,
    variable: str,
    merged: Collection[str],
    looks_by_model: Mapping[str, MarkerStyle],
) -> Markup:
    curves = [curve for curve in scores.curves if curve.variable == variable]
    bags = _has_bags(curves, merged)
    title = "Scores by bag ratio" if bags else f"Scores by {variable}"
    charts = [
        _draw_chart(scores, curves, on, merged, looks_by_model)
        for on in _list_means(scores, curves)
    ]
    return tag(
        "figure",
        tag("h3", title),
        charts,
        tag("figcaption", _CAPTION),
        _draw_table(scores, curves, merged),
    )


def _list_means(scores: Scores, curves: Sequence[ScoreCurve]) -> list[str]:
    return [on for on in scores.headlines() if all(on in p.means for c in curves for p in c.places)]


def _draw_chart(
    scores: Scores,
    curves: Sequence[ScoreCurve],
    on: str,
    merged: Collection[str],
    looks_by_model: Mapping[str, MarkerStyle],
) -> Markup:
    levels = {
        name: (looks_by_model.get(name, NEUTRAL), v) for name, v in _list_levels(scores, on, merged)
    }
    styles = _choose_unused_looks(len(curves), {look.style for look, _ in levels.values()})
    lines = [
        _draw_line(curve, on, look, scores.scale)
        for curve, look in zip(curves, styles, strict=True)
    ]
    ends = [at for line in lines for at, _ in line.points]
    low, high = min(ends), max(ends)
    for name, (look, value) in levels.items():
        lines.append(Line(name, look, [(low, value), (high, value)], dashed=True))
    axis = _name_axis(curves, merged)
    return line_chart(
        lines,
        Chart(
            label=f"{MEANS[on]} by {axis}: {'; '.join(_describe_curve(c, on, scores.less) for c in curves)}",
            x=axis,
            y=f"{MEANS[on]} of losses" if scores.less else f"{MEANS[on]} ×100",
        ),
    )


def _choose_unused_looks(count: int, used_styles: Collection[str]) -> list[MarkerStyle]:
    """Return `count` marker styles; styles with unused colours come first."""
    all_looks = list(looks(map(str, range(count + len(used_styles)))).values())
    unused_looks = [look for look in all_looks if look.style not in used_styles]
    return [*unused_looks, *all_looks][:count]


def _draw_line(curve: ScoreCurve, on: str, look: MarkerStyle, scale: float) -> Line:
    bars = [
        (_place_on_axis(curve, point), scale * ends[0], scale * ends[1])
        for point in curve.places
        if (ends := point.means[on].interval) is not None
    ]
    dots = [(_place_on_axis(curve, point), scale * point.means[on].mean) for point in curve.places]
    return Line(curve.name, look, dots, dots=True, bars=bars)


def _list_levels(scores: Scores, on: str, merged: Collection[str]) -> Iterator[tuple[str, float]]:
    """Yield (merge, score) of each merge on no curve, such as one of bags with different ratios."""
    pooled = scores.pooled or scores
    drawn_models = {
        name for curve in scores.curves for point in curve.places for name in point.models
    }
    levels = [
        (name, scores.scale * value)
        for name in pooled.models
        if not drawn_models.intersection(members := pooled.members_of(name))
        and set(members) <= set(merged)
        and (value := pooled.value(name, on)) is not None
    ]
    yield from levels[:_MOST_LEVELS]


def _place_on_axis(curve: ScoreCurve, point: CurvePoint) -> float:
    return 100 * point.at if curve.variable == "ratio" else point.at


def _name_axis(curves: Sequence[ScoreCurve], merged: Collection[str]) -> str:
    if _has_bags(curves, merged):
        return "bag ratio, % of every dataset"
    return "ratio, %" if curves[0].variable == "ratio" else curves[0].variable


def _has_bags(curves: Sequence[ScoreCurve], merged: Collection[str]) -> bool:
    """Return whether the ratio is that of bags: models were trained with it, not only merged."""
    models = {name for curve in curves for point in curve.places for name in point.models}
    return curves[0].variable == "ratio" and not models <= set(merged)


def _describe_curve(curve: ScoreCurve, on: str, less: bool) -> str:
    places = [
        f"{_place_on_axis(curve, p):g} {points(p.means[on].mean, less)}" for p in curve.places
    ]
    return f"{curve.name} {', '.join(places)}"


_CAPTION = (
    "Bars are 95 % intervals over test examples, and over draws and seeds "
    "where a place has several models. Dashed: merges of models from several places."
)


def _draw_table(scores: Scores, curves: Sequence[ScoreCurve], merged: Collection[str]) -> Markup:
    means = _list_means(scores, curves)
    rows = [
        [
            tag("th", curve.name, scope="row"),
            tag("td", number(_place_on_axis(curve, point))),
            tag("td", f"{len(point.models)}"),
            *(_draw_cell(point, on, scores.less) for on in means),
        ]
        for curve in curves
        for point in curve.places
    ]
    head = [left("Step"), _name_axis(curves, merged), "Models", *(MEANS[on] for on in means)]
    return table(head, rows)


def _draw_cell(point: CurvePoint, on: str, less: bool) -> Markup:
    interval = point.means[on].interval
    spread = " – ".join(points(end, less) for end in interval) if interval else None
    return tag("td", points(point.means[on].mean, less), tag("small", spread) if spread else None)
