"""Sections of a page on trainings, merges and distances of models."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from emberge.tensor_names import layer_order

from emberge_report.charts.line_chart import Chart, Curve, Line, line_chart, smooth
from emberge_report.charts.markup import Child, Markup, join, tag
from emberge_report.charts.svg import MarkerStyle, number
from emberge_report.charts.svg import looks as looks_of
from emberge_report.page.cost import cost_section
from emberge_report.page.figure_data import weights_by_layer
from emberge_report.page.figures import figure_of, figure_section
from emberge_report.page.tables import duration, fold, left, plain, swatch, table
from emberge_report.report_data import Distances, ModelOfRun, ReportData

# Most lines of one chart, as more would look alike; further lines get further charts.
_LINES = 8
# What is shown as a picture or a table already.
_DRAWN = {"loss_curve", "losses", "trained", "training_cost", "weights_by_layer", "figures"}
Looks = Mapping[str, MarkerStyle]


def training_section(report: ReportData, looks: Looks) -> Markup:
    """Return a table of the trainings and their loss curves."""
    rows = [
        [
            _draw_name(model, looks),
            *(tag("td", plain(value)) for value in (model.artifact.size, _count_steps(model))),
            tag("td", _show_last_loss(model)),
            tag("td", duration(model.seconds)),
            tag("td", plain(model.details.get("seed"))),
            tag("td", plain(model.details.get("base")), class_="words"),
        ]
        for model in report.trained
    ]
    head = ["Model", "Examples", "Steps", "Last loss", "Time", "Seed", left("Started from")]
    curves = {model.name: model.curves for model in report.trained}
    return tag(
        "div",
        table(head, rows),
        _draw_losses({name: c["loss"] for name, c in curves.items() if c.get("loss")}, looks),
        [_draw_by_dataset(name, curves_of_model) for name, curves_of_model in curves.items()],
        _draw_other_charts(curves, looks),
        fold("All details of the trainings", [_draw_details(m) for m in report.trained]),
    )


def _draw_name(model: ModelOfRun, looks: Looks) -> Markup:
    return tag("th", swatch(looks[model.name]), model.name, scope="row")


def _count_steps(model: ModelOfRun) -> int | None:
    steps = model.details.get("steps")
    if isinstance(steps, int):
        return steps
    loss = model.curves.get("loss")
    return int(loss[-1][0]) if loss else None


def _show_last_loss(model: ModelOfRun) -> str:
    points = smooth(model.curves.get("loss", ()))
    if not points:
        return "–"
    tail = [value for _, value in points[-max(1, len(points) // 20) :]]
    return f"{sum(tail) / len(tail):.4g}"


def _draw_losses(curves: Mapping[str, Curve], looks: Looks) -> Markup | None:
    if not curves:
        return tag("p", "No loss was logged.", class_="soft")
    names = list(curves)
    parts = [names[i : i + _LINES] for i in range(0, len(names), _LINES)]
    drawn_curves = [
        _draw_chart({n: curves[n] for n in part}, looks, "training loss", "Training loss")
        for part in parts
    ]
    caption = "Faint: the loss of each logged step. Strong: lines fitted to the third of the run around it."
    notes = [_note_not_finite(name, curve) for name, curve in curves.items()]
    return tag("figure", drawn_curves, tag("figcaption", caption, notes))


def _note_not_finite(name: str, curve: Curve) -> str | None:
    invalid_count = sum(not math.isfinite(value) for _, value in curve)
    return (
        f" {name}: {invalid_count} logged losses are not finite numbers and are left out."
        if invalid_count
        else None
    )


def _draw_chart(curves: Mapping[str, Curve], looks: Looks, y: str, label: str) -> Markup:
    lines = [Line(name, looks[name], smooth(c), faint=c) for name, c in curves.items()]
    ends = "; ".join(
        f"{line.name} from {line.points[0][1]:.3g} to {line.points[-1][1]:.3g}"
        for line in lines
        if line.points
    )
    return line_chart(lines, Chart(label=f"{label}, smoothed: {ends}", x="optimizer step", y=y))


def _draw_by_dataset(name: str, curves: Mapping[str, Curve]) -> Markup | None:
    """Return a chart of one training's losses by data set; None for a single data set."""
    parts = {key.removeprefix("loss/"): c for key, c in curves.items() if key.startswith("loss/")}
    if len(parts) < 2:
        return None
    looks_by_dataset = looks_of(parts)
    shown_names = list(parts)[:_LINES]
    chart = _draw_chart(
        {n: parts[n] for n in shown_names},
        looks_by_dataset,
        "training loss",
        f"Loss of {name} by data set",
    )
    remainder_note = (
        f" The first {_LINES} of {len(parts)} data sets." if len(parts) > _LINES else ""
    )
    return fold(
        f"{name}: loss by data set", tag("figure", chart, tag("figcaption", remainder_note or None))
    )


def _draw_other_charts(curves: Mapping[str, Mapping[str, Curve]], looks: Looks) -> Markup | None:
    labels = {"learning_rate": "learning rate", "grad_norm": "gradient norm before clipping"}
    charts: list[Markup] = []
    for key, words in labels.items():
        curves_by_model = {name: c[key] for name, c in curves.items() if c.get(key)}
        names = list(curves_by_model)[:_LINES]
        if not names:
            continue
        is_learning_rate = key == "learning_rate"
        lines = [
            Line(
                n,
                looks[n],
                curves_by_model[n] if is_learning_rate else smooth(curves_by_model[n]),
                () if is_learning_rate else curves_by_model[n],
            )
            for n in names
        ]
        chart = Chart(label=f"{words} of {', '.join(names)}", x="optimizer step", y=words)
        charts.append(tag("figure", line_chart(lines, chart)))
    return fold("Learning rate and gradient norm", charts) if charts else None


def _draw_details(model: ModelOfRun) -> Markup | None:
    if not model.details:
        return None
    rows = [
        [tag("th", key.replace("_", " "), scope="row"), tag("td", plain(value), class_="words")]
        for key, value in model.details.items()
        if key not in _DRAWN and value not in (None, [], {}, "")
    ]
    return table(["", left("Value")], rows, model.name)


def merge_section(report: ReportData, looks: Looks) -> Markup:
    """Return the merges' costs, then each merge: its method, its parents with their weights."""
    return tag(
        "div", cost_section(report, looks), [_draw_merge(merge, looks) for merge in report.merges]
    )


def _draw_merge(merge: ModelOfRun, looks: Looks) -> Markup:
    weights = _list_weights(merge)
    largest = max((abs(w) for _, w in weights if w is not None), default=1.0) or 1.0
    rows = [
        [
            tag(
                "th",
                swatch(looks[name]) if name in looks else None,
                name,
                scope="row",
            ),
            tag("td", _draw_bar(weight, largest, looks.get(name)), class_="words"),
        ]
        for name, weight in weights
    ]
    base = merge.details.get("base")
    return tag(
        "div",
        tag("h3", merge.name),
        tag(
            "p",
            "Merged with ",
            tag("code", plain(merge.details.get("strategy"))),
            f" around the base {plain(base)}" if base else None,
            f" in {duration(merge.seconds)}" if merge.seconds is not None else None,
            ".",
        ),
        tag("p", f"Its parents are {merge.kinship_note}.") if merge.kinship_note else None,
        tag("div", table(["Parent", left("Weight")], rows), class_="narrow"),
        _draw_by_layer(merge),
        truncation(merge.name, merge.details),
        fold("All details of the merge", _draw_details(merge)),
    )


def _draw_by_layer(merge: ModelOfRun) -> Markup | None:
    """Return the figure of weights that the strategy computed for each layer; None without."""
    figure = weights_by_layer(merge.name, merge.details)
    return figure_section([figure_of(figure)]) if figure is not None else None


def _draw_bar(weight: float | None, largest: float, look: MarkerStyle | None) -> list[Child]:
    if weight is None:
        return ["set by tensor or layer; see the recipe"]
    width = f"width:{100 * abs(weight) / largest:.1f}px"
    style = look.style if look else "neutral"
    bar = tag("span", class_=f"bar {style}", style=width, aria_hidden="true")
    return [bar, f"{weight:.4f}".rstrip("0").rstrip(".") or "0"]


def _list_weights(merge: ModelOfRun) -> list[tuple[str, float | None]]:
    """Return (parent, weight) of each parent; a weight that is not one number is None."""
    weights = merge.details.get("weights")
    if isinstance(weights, Mapping):
        return [
            (str(name).removeprefix("$"), _read_finite(weight)) for name, weight in weights.items()
        ]
    if isinstance(weights, Sequence) and len(weights) == len(merge.parents):
        return [(parent, _read_finite(w)) for parent, w in zip(merge.parents, weights, strict=True)]
    return [(parent, None) for parent in merge.parents]


def _read_finite(value: Any) -> float | None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if fits else None


def distance_section(report: ReportData, looks: Looks) -> Markup:
    """Return charts of the distance of each layer of each model from the base."""
    distances = {model.name: model.distances for model in report.models if model.distances}
    reasons = [(model.name, model.no_distances) for model in report.models if model.no_distances]
    missing_notes = [
        tag("p", tag("b", name), ": ", reason, class_="soft") for name, reason in reasons
    ]
    if not distances:
        return tag("div", missing_notes)
    order = layer_order(
        layer for distances_of_model in distances.values() for layer in distances_of_model.layers
    )
    labels = [layer.removeprefix("layers.") for layer in order]
    names = list(distances)
    charts = [
        line_chart(
            [
                _draw_distances(name, distances[name], order, looks)
                for name in names[i : i + _LINES]
            ],
            Chart(
                label=f"Relative distance from {report.base or 'the base'} by layer: "
                + "; ".join(f"{n} {100 * distances[n].total:.3g} % over all" for n in names),
                x="layer",
                y="distance from the base, % of the base's norm",
                labels=labels,
                from_zero=True,
                unit=" %",
            ),
        )
        for i in range(0, len(names), _LINES)
    ]
    return tag(
        "div",
        tag("figure", charts, tag("figcaption", _CAPTION)),
        missing_notes,
        _draw_distance_table(distances, order, looks, report),
        [tag("p", note, class_="soft") for note in _list_unmeasured(distances)],
    )


_CAPTION = (
    "‖W − W₀‖ / ‖W₀‖, the Frobenius norm over all tensors of a layer, in percent. Training longer or "
    "with a higher learning rate moves a model further; a merge is usually nearer to the base than "
    "its parents where they moved in different directions."
)


def _draw_distances(name: str, distances: Distances, order: Sequence[str], looks: Looks) -> Line:
    placed = [(float(i), layer) for i, layer in enumerate(order) if layer in distances.layers]
    points = [(at, 100 * distances.layers[layer]) for at, layer in placed]
    breaks = {
        i
        for i, ((_, before), (_, layer)) in enumerate(pairwise(placed), start=1)
        if not (_is_numbered(before) and _is_numbered(layer))
    }
    last = max((i for i, (_, layer) in enumerate(placed) if _is_numbered(layer)), default=-1)
    return Line(name, looks[name], points, breaks=frozenset(breaks), dots=True, end=last)


def _is_numbered(layer: str) -> bool:
    return layer.rpartition(".")[2].isdecimal()


def _draw_distance_table(
    distances: Mapping[str, Distances], order: Sequence[str], looks: Looks, report: ReportData
) -> Markup:
    models = {entry.name: entry for entry in report.models}
    rows = [
        [
            _draw_name(models[name], looks),
            tag("td", _show_percent(entry.total)),
            *(tag("td", _show_percent(entry.layers.get(layer))) for layer in order),
        ]
        for name, entry in distances.items()
    ]
    head = ["Model", "All", *(layer.removeprefix("layers.") for layer in order)]
    distance_table = table(head, rows, f"Distance from {report.base or 'the base'} in percent")
    return fold("The numbers behind the chart", distance_table)


def _show_percent(share: float | None) -> str:
    return "–" if share is None else number(100 * share, (0, 0.01))


def _list_unmeasured(distances: Mapping[str, Distances]) -> Iterable[Child]:
    for name, distances_of_model in distances.items():
        if distances_of_model.left_out:
            examples = ", ".join(distances_of_model.left_out[:3]) + (
                "…" if len(distances_of_model.left_out) > 3 else ""
            )
            yield join(
                (
                    tag("b", name),
                    f": {len(distances_of_model.left_out)} tensors have no like in the base: {examples}",
                )
            )


def truncation(name: str, details: Mapping[str, Any]) -> Markup | None:
    """Return a table of tensors by truncation error; None if no adapter was made from a merge."""
    adapter = details.get("adapter")
    errors = adapter.get("errors") if isinstance(adapter, Mapping) else None
    if not isinstance(adapter, Mapping) or not errors:
        return None
    ranks = adapter.get("ranks", {})
    largest_errors = sorted(errors.items(), key=lambda item: -item[1])
    if largest_errors[0][1] == 0:
        return tag("p", f"An adapter of rank {_show_ranks(ranks)}, which leaves nothing out.")
    rows = [
        [
            tag("th", tag("code", tensor), scope="row"),
            tag("td", str(ranks.get(tensor.removesuffix(".weight"), "–"))),
            tag("td", f"{error:.3g}"),
        ]
        for tensor, error in largest_errors
    ]
    middle = largest_errors[len(largest_errors) // 2][1]
    return tag(
        "div",
        tag(
            "p",
            f"An adapter of rank {_show_ranks(ranks)}, which leaves out up to {largest_errors[0][1]:.3g} "
            "of a "
            f"tensor's change ({middle:.3g} of the middle one's), in Frobenius norms.",
        ),
        fold(f"{name}: what its rank leaves out", table(["Tensor", "Rank", "Left out"], rows)),
    )


def _show_ranks(ranks: Mapping[str, int]) -> str:
    ends = sorted({min(ranks.values()), max(ranks.values())}) if ranks else []
    return " to ".join(map(str, ends)) or "0"
