"""Section of a page on quality and cost: scores over time, megabytes and parameters, with Pareto fronts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from emberge.evaluating import MEANS, Scores
from emberge.wording import count_noun

from emberge_report.charts.markup import Markup, tag
from emberge_report.charts.point_chart import WIDTH, point_chart
from emberge_report.charts.svg import NEUTRAL, MarkerStyle
from emberge_report.cost_table import describe_costs, list_costs
from emberge_report.page.tables import swatch, table

_MILLION = 1e6
# Width of charts that are side by side.
_HALF = 510
Looks = Mapping[str, MarkerStyle]


def quality_section(scores: Scores, looks: Looks) -> Markup | None:
    """Return charts of each headline mean over each cost, and the numbers; None for models of equal cost."""
    looks = {model: looks.get(model, NEUTRAL) for model in scores.models_of_recipe}
    time = _map_to_time(scores)
    charts = list(_draw_charts(scores, time, looks, WIDTH))
    twins = list(_draw_charts(scores, _map_to_sizes(scores), looks, _HALF))
    if not charts and not twins:
        return None
    head, rows = list_costs(scores)
    cells = [
        [tag("th", swatch(looks[model]), model, scope="row"), *(tag("td", text) for text in row)]
        for model, row in rows.items()
    ]
    return tag(
        "div",
        tag(
            "figure",
            charts,
            tag("div", twins, class_="twins") if twins else None,
            tag("figcaption", _describe_charts(scores)),
        ),
        table(["Model", *head], cells, "Quality and cost of each model"),
        tag("p", describe_costs(scores), class_="soft"),
    )


def _map_to_time(scores: Scores) -> dict[str, dict[str, float]]:
    """Map the label of the axis of time to milliseconds by model; empty if nothing was measured."""
    costs = scores.encoding_costs
    if not costs:
        return {}
    first = next(iter(costs.values()))
    title = f"ms a query, {count_noun(first.threads, 'thread')} of {first.machine}"
    return {title: {model: cost.milliseconds for model, cost in costs.items()}}


def _map_to_sizes(scores: Scores) -> dict[str, dict[str, float]]:
    """Map the label of each axis of sizes to the sizes by model; models of equal sizes have no axis."""
    counts = {m: scores.parameters[m] for m in scores.models_of_recipe if m in scores.parameters}
    active = {model: count.active / _MILLION for model, count in counts.items()}
    axes = {
        "MB of weights": {m: size / _MILLION for m, size in scores.weight_bytes.items()},
        "parameters, millions": {m: count.total / _MILLION for m, count in counts.items()},
        "active parameters, millions": active,
    }
    if all(count.active == count.total for count in counts.values()):
        del axes["active parameters, millions"]
    return {title: sizes for title, sizes in axes.items() if len(set(sizes.values())) > 1}


def _draw_charts(
    scores: Scores, axes: Mapping[str, Mapping[str, float]], looks: Looks, width: int
) -> Iterator[Markup]:
    """Yield a chart for each axis and headline mean that two models have."""
    for title, costs in axes.items():
        for on in scores.headlines():
            places = {
                model: (costs[model], scores.scale * value)
                for model in looks
                if model in costs and (value := scores.value(model, on)) is not None
            }
            if len(places) > 1:
                yield _draw_chart(scores, on, title, places, looks, width)


def _draw_chart(
    scores: Scores,
    on: str,
    title: str,
    places: Mapping[str, tuple[float, float]],
    looks: Looks,
    width: int,
) -> Markup:
    mean = MEANS.get(on, on)
    intervals = {model: scores.interval(model, on) for model in places}
    return point_chart(
        title,
        f"{mean} of losses" if scores.less else f"{mean} ×100",
        {model: [(*at, model)] for model, at in places.items()},
        chosen={model: looks[model] for model in places},
        line=[places[model] for model in front_of(places, less=scores.less)],
        intervals={
            model: (scores.scale * ends[0], scores.scale * ends[1])
            for model, ends in intervals.items()
            if ends is not None
        },
        logarithmic=True,
        width=width,
    )


def _describe_charts(scores: Scores) -> str:
    sentences = ["The dashed line joins the models that none as cheap scores above."]
    if any(scores.intervals.values()):
        sentences.append(f"Bars are {100 * scores.confidence:g} % intervals.")
    return " ".join(sentences)


def front_of(places: Mapping[str, tuple[float, float]], *, less: bool = False) -> list[str]:
    """Return the Pareto front of models, from the (cost, score) of each, cheapest first.

    With `less` lower scores are better. If models are equal in cost and score, only the first is included.
    """
    front: list[str] = []
    best = float("-inf")
    goodness = {name: -score if less else score for name, (_, score) in places.items()}
    for model in sorted(places, key=lambda name: (places[name][0], -goodness[name])):
        if goodness[model] > best:
            best = goodness[model]
            front.append(model)
    return front
