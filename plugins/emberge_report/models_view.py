"""Models of a run in a page: losses of trainings, weights of merges, distances from the base."""

from __future__ import annotations

import math
from collections.abc import Mapping

from emberge.contracts import Figure, HeatMap
from emberge_statistics import sort_layers
from markupsafe import Markup

from emberge_report.charts import Line, Look, describe_ends, draw_lines, thin
from emberge_report.report_data import ReportData, ReportedStep

Looks = Mapping[str, Look]
# Most curves of one chart, as more would look alike; further ones get further charts.
_MOST_CURVES = 8


def draw_losses(report: ReportData, looks_by_name: Looks) -> list[Markup]:
    """Return charts of the losses of all trainings that logged two losses, between which a line can lead."""
    curves = {
        model.name: model.curves["loss"]
        for model in report.select_models("trained")
        if sum(math.isfinite(loss) for _, loss in model.curves.get("loss", ())) > 1
    }
    thinned = {name: thin(curve) for name, curve in curves.items()}
    return [
        draw_lines(
            [Line(name, looks_by_name[name], points) for name, points in some.items()],
            x="optimizer step",
            y="training loss",
            label=f"Training loss: {describe_ends(some)}",
        )
        for start in range(0, len(thinned), _MOST_CURVES)
        for some in [dict(list(thinned.items())[start : start + _MOST_CURVES])]
    ]


def count_losses_not_finite(training: ReportedStep) -> int:
    """Return the number of a training's logged losses that are not finite."""
    return sum(not math.isfinite(value) for _, value in training.curves.get("loss", ()))


def list_weights(merge: ReportedStep) -> list[tuple[str, float, float]]:
    """Return (parent, weight, width of a bar) of each parent."""
    weights = {name.removeprefix("$"): weight for name, weight in merge.merge.weights.items()}
    largest = max(map(abs, weights.values()), default=1.0) or 1.0
    return [(name, w, round(100 * abs(w) / largest, 1)) for name, w in weights.items()]


def list_layers(report: ReportData) -> list[str]:
    """Return the layers that any model's distance is known of, in the order of the model."""
    known = [model.distances.layers for model in report.models if model.distances]
    return list(sort_layers(layer for layers in known for layer in layers))


def build_weight_map(merge: ReportedStep) -> Figure | None:
    """Return the heat map, layers by labels, of the weights that a strategy computed; None without any."""
    weights = merge.merge.weights_by_layer
    layers = sort_layers(weights)
    labels = list(dict.fromkeys(label for layer in layers for label in weights[layer]))
    if not labels:
        return None
    return Figure(
        title=f"{merge.name}: weights by layer",
        caption="The strategy computed these weights from the models. Where the tensors of a layer have "
        "weights of their own, it is their mean over elements.",
        heat_map=HeatMap(
            rows=[layer.removeprefix("layers.") for layer in layers],
            columns=labels,
            values=[[weights[layer].get(label) for label in labels] for layer in layers],
        ),
    )


def draw_distances(report: ReportData, looks_by_name: Looks) -> list[Markup]:
    """Return charts of the distance of each layer of each model from the base."""
    layers = list_layers(report)
    distances = {model.name: model.distances for model in report.models if model.distances}
    lines = [
        Line(
            name,
            looks_by_name[name],
            [(float(i), 100 * d.layers[at]) for i, at in enumerate(layers) if at in d.layers],
            marked=True,
        )
        for name, d in distances.items()
    ]
    totals = "; ".join(f"{name} {100 * d.total:.3g} % over all" for name, d in distances.items())
    return [
        draw_lines(
            lines[i : i + _MOST_CURVES],
            x="layer",
            y="distance, % of the base's norm",
            label=f"Relative distance from {report.base} by layer: {totals}",
            places=[layer.removeprefix("layers.") for layer in layers],
            from_zero=True,
        )
        for i in range(0, len(lines), _MOST_CURVES)
    ]
