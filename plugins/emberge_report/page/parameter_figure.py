"""Charts of scores over total and active parameters, with the Pareto front of models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from emberge.contracts import ParameterCount
from emberge.evaluating import MEANS, Scores

from emberge_report.charts.markup import Markup, tag
from emberge_report.charts.point_chart import point_chart
from emberge_report.charts.svg import NEUTRAL, MarkerStyle
from emberge_report.page.tables import points, swatch, table

_MILLION = 1e6
_AXES = {"total": "parameters, millions", "active": "active parameters, millions"}


def parameter_figure(scores: Scores, looks: Mapping[str, MarkerStyle]) -> Markup | None:
    """Return charts of each headline mean over parameters, and the numbers; None for models of one size."""
    counts = {m: scores.parameters[m] for m in scores.models if m in scores.parameters}
    axes = [axis for axis in _AXES if len(set(_compute_sizes(counts, axis).values())) > 1]
    if all(count.active == count.total for count in counts.values()):
        axes = axes[:1]
    means = scores.headlines()
    charts = [
        chart for axis in axes for on in means for chart in _draw_chart(scores, on, axis, looks)
    ]
    if not charts:
        return None
    return tag(
        "figure",
        tag("h3", "Scores by parameters"),
        charts,
        tag("figcaption", _CAPTION),
        _draw_table(scores, counts, means, looks),
    )


_CAPTION = (
    "The line joins the models that none with as few parameters scores above. Active are the parameters that "
    "one token uses: of a layer’s experts those that its router chooses, and everything beside them."
)


def _compute_sizes(counts: Mapping[str, ParameterCount], axis: str) -> dict[str, float]:
    return {model: getattr(count, axis) / _MILLION for model, count in counts.items()}


def _draw_chart(
    scores: Scores, on: str, axis: str, looks: Mapping[str, MarkerStyle]
) -> Iterator[Markup]:
    """Yield the chart of one mean, if two models have it."""
    places = {
        model: (size, scores.scale * value)
        for model, size in _compute_sizes(scores.parameters, axis).items()
        if (value := scores.value(model, on)) is not None
    }
    if len(places) > 1:
        yield point_chart(
            _AXES[axis],
            f"{MEANS.get(on, on)} of losses" if scores.less else f"{MEANS.get(on, on)} ×100",
            {model: [(*at, model)] for model, at in places.items()},
            chosen={model: looks.get(model, NEUTRAL) for model in places},
            line=[places[model] for model in front_of(places, less=scores.less)],
            logarithmic=True,
        )


def front_of(places: Mapping[str, tuple[float, float]], *, less: bool = False) -> list[str]:
    """Return the Pareto front of models, from the (size, score) of each, smallest first.

    With `less` lower scores are better. If models are equal in size and score, only the first is included.
    """
    front: list[str] = []
    best = float("-inf")
    goodness = {name: -score if less else score for name, (_, score) in places.items()}
    for model in sorted(places, key=lambda name: (places[name][0], -goodness[name])):
        if goodness[model] > best:
            best = goodness[model]
            front.append(model)
    return front


def _draw_table(
    scores: Scores,
    counts: Mapping[str, ParameterCount],
    means: Sequence[str],
    looks: Mapping[str, MarkerStyle],
) -> Markup:
    rows = [
        [
            tag("th", swatch(looks.get(model, NEUTRAL)), model, scope="row"),
            *(tag("td", f"{n:,}") for n in (count.total, count.active, count.computed)),
            *(tag("td", points(scores.value(model, on), scores.less)) for on in means),
        ]
        for model, count in counts.items()
    ]
    head = ["Model", "Parameters", "Active", "Active without the word embedding"]
    return table([*head, *(MEANS.get(on, on) for on in means)], rows, "Parameters of each model")
