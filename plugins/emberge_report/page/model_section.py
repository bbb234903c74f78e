"""Sections of a page on how models were made: trainings, merges, distances."""

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
from emberge_report.report_data import Distances, Made, ReportData

# More lines than this in one chart look alike; the others get charts of their own.
_LINES = 8
# What is shown as a picture or a table already.
_DRAWN = {"loss_curve", "losses", "trained", "training_cost", "weights_by_layer", "figures"}
Looks = Mapping[str, MarkerStyle]


def training_section(story: ReportData, looks: Looks) -> Markup:
    """Return a table of the trainings and their loss curves."""
    rows = [
        [
            _draw_name(made, looks),
            *(tag("td", plain(value)) for value in (made.artifact.size, _count_steps(made))),
            tag("td", _show_last_loss(made)),
            tag("td", duration(made.seconds)),
            tag("td", plain(made.details.get("seed"))),
            tag("td", plain(made.details.get("base")), class_="words"),
        ]
        for made in story.trained
    ]
    head = ["Model", "Examples", "Steps", "Last loss", "Time", "Seed", left("Started from")]
    curves = {made.name: made.curves for made in story.trained}
    return tag(
        "div",
        table(head, rows),
        _draw_losses({name: c["loss"] for name, c in curves.items() if c.get("loss")}, looks),
        [_draw_by_dataset(name, found) for name, found in curves.items()],
        _draw_other_charts(curves, looks),
        fold("All details of the trainings", [_draw_details(m) for m in story.trained]),
    )


def _draw_name(made: Made, looks: Looks) -> Markup:
    return tag("th", swatch(looks[made.name]), made.name, scope="row")


def _count_steps(made: Made) -> int | None:
    known = made.details.get("steps")
    if isinstance(known, int):
        return known
    loss = made.curves.get("loss")
    return int(loss[-1][0]) if loss else None


def _show_last_loss(made: Made) -> str:
    points = smooth(made.curves.get("loss", ()))
    if not points:
        return "–"
    tail = [value for _, value in points[-max(1, len(points) // 20) :]]
    return f"{sum(tail) / len(tail):.4g}"


def _draw_losses(curves: Mapping[str, Curve], looks: Looks) -> Markup | None:
    if not curves:
        return tag("p", "No loss was logged.", class_="soft")
    names = list(curves)
    parts = [names[i : i + _LINES] for i in range(0, len(names), _LINES)]
    drawn = [
        _draw_chart({n: curves[n] for n in part}, looks, "training loss", "Training loss")
        for part in parts
    ]
    caption = "Faint: the loss of each logged step. Strong: lines fitted to the third of the run around it."
    notes = [_note_not_finite(name, curve) for name, curve in curves.items()]
    return tag("figure", drawn, tag("figcaption", caption, notes))


def _note_not_finite(name: str, curve: Curve) -> str | None:
    lost = sum(not math.isfinite(value) for _, value in curve)
    return (
        f" {name}: {lost} logged losses are not finite numbers and are left out." if lost else None
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
    """Return a chart of one training's losses by data set, where there are several."""
    parts = {key.removeprefix("loss/"): c for key, c in curves.items() if key.startswith("loss/")}
    if len(parts) < 2:
        return None
    chosen = looks_of(parts)
    shown = list(parts)[:_LINES]
    chart = _draw_chart(
        {n: parts[n] for n in shown}, chosen, "training loss", f"Loss of {name} by data set"
    )
    more = f" The first {_LINES} of {len(parts)} data sets." if len(parts) > _LINES else ""
    return fold(f"{name}: loss by data set", tag("figure", chart, tag("figcaption", more or None)))


def _draw_other_charts(curves: Mapping[str, Mapping[str, Curve]], looks: Looks) -> Markup | None:
    wanted = {"learning_rate": "learning rate", "grad_norm": "gradient norm before clipping"}
    charts: list[Markup] = []
    for key, words in wanted.items():
        found = {name: c[key] for name, c in curves.items() if c.get(key)}
        names = list(found)[:_LINES]
        if not names:
            continue
        plainly = key == "learning_rate"
        lines = [
            Line(
                n, looks[n], found[n] if plainly else smooth(found[n]), () if plainly else found[n]
            )
            for n in names
        ]
        chart = Chart(label=f"{words} of {', '.join(names)}", x="optimizer step", y=words)
        charts.append(tag("figure", line_chart(lines, chart)))
    return fold("Learning rate and gradient norm", charts) if charts else None


def _draw_details(made: Made) -> Markup | None:
    if not made.details:
        return None
    rows = [
        [tag("th", key.replace("_", " "), scope="row"), tag("td", plain(value), class_="words")]
        for key, value in made.details.items()
        if key not in _DRAWN and value not in (None, [], {}, "")
    ]
    return table(["", left("Value")], rows, made.name)


def merge_section(story: ReportData, looks: Looks) -> Markup:
    """Return the merges' costs, then each merge: its method, its parents with their weights."""
    return tag(
        "div", cost_section(story, looks), [_draw_merge(made, looks) for made in story.merges]
    )


def _draw_merge(made: Made, looks: Looks) -> Markup:
    weights = _list_weights(made)
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
    base = made.details.get("base")
    return tag(
        "div",
        tag("h3", made.name),
        tag(
            "p",
            "Merged with ",
            tag("code", plain(made.details.get("strategy"))),
            f" around the base {plain(base)}" if base else None,
            f" in {duration(made.seconds)}" if made.seconds is not None else None,
            ".",
        ),
        tag("p", f"Its parents are {made.kin}.") if made.kin else None,
        tag("div", table(["Parent", left("Weight")], rows), class_="narrow"),
        _draw_by_layer(made),
        truncation(made.name, made.details),
        fold("All details of the merge", _draw_details(made)),
    )


def _draw_by_layer(made: Made) -> Markup | None:
    """Return the numbers that the strategy computed for each layer; None where it reported none."""
    found = weights_by_layer(made.name, made.details)
    return figure_section([figure_of(found)]) if found is not None else None


def _draw_bar(weight: float | None, largest: float, look: MarkerStyle | None) -> list[Child]:
    if weight is None:
        return ["set by tensor or layer; see the recipe"]
    width = f"width:{100 * abs(weight) / largest:.1f}px"
    style = look.style if look else "neutral"
    bar = tag("span", class_=f"bar {style}", style=width, aria_hidden="true")
    return [bar, f"{weight:.4f}".rstrip("0").rstrip(".") or "0"]


def _list_weights(made: Made) -> list[tuple[str, float | None]]:
    """Yield (parent, weight); a weight that is not one number is None."""
    found = made.details.get("weights")
    if isinstance(found, Mapping):
        return [
            (str(name).removeprefix("$"), _finite_float(weight)) for name, weight in found.items()
        ]
    if isinstance(found, Sequence) and len(found) == len(made.parents):
        return [(parent, _finite_float(w)) for parent, w in zip(made.parents, found, strict=True)]
    return [(parent, None) for parent in made.parents]


def _finite_float(value: Any) -> float | None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if fits else None


def distance_section(story: ReportData, looks: Looks) -> Markup:
    """Return charts of the distance of each layer of each model from the base."""
    found = {made.name: made.distances for made in story.made if made.distances}
    why = [(made.name, made.no_distances) for made in story.made if made.no_distances]
    missing = [tag("p", tag("b", name), ": ", reason, class_="soft") for name, reason in why]
    if not found:
        return tag("div", missing)
    order = layer_order(layer for one in found.values() for layer in one.layers)
    labels = [layer.removeprefix("layers.") for layer in order]
    names = list(found)
    charts = [
        line_chart(
            [_draw_distances(name, found[name], order, looks) for name in names[i : i + _LINES]],
            Chart(
                label=f"Relative distance from {story.base or 'the base'} by layer: "
                + "; ".join(f"{n} {100 * found[n].total:.3g} % over all" for n in names),
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
        missing,
        _draw_distance_table(found, order, looks, story),
        [tag("p", note, class_="soft") for note in _list_unmeasured(found)],
    )


_CAPTION = (
    "‖W − W₀‖ / ‖W₀‖, the Frobenius norm over all tensors of a layer, in percent. Training longer or "
    "with a higher learning rate moves a model further; a merge is usually nearer to the base than "
    "its parents where they moved in different directions."
)


def _draw_distances(name: str, found: Distances, order: Sequence[str], looks: Looks) -> Line:
    placed = [(float(i), layer) for i, layer in enumerate(order) if layer in found.layers]
    points = [(at, 100 * found.layers[layer]) for at, layer in placed]
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
    found: Mapping[str, Distances], order: Sequence[str], looks: Looks, story: ReportData
) -> Markup:
    made = {one.name: one for one in story.made}
    rows = [
        [
            _draw_name(made[name], looks),
            tag("td", _show_percent(one.total)),
            *(tag("td", _show_percent(one.layers.get(layer))) for layer in order),
        ]
        for name, one in found.items()
    ]
    head = ["Model", "All", *(layer.removeprefix("layers.") for layer in order)]
    measured = table(head, rows, f"Distance from {story.base or 'the base'} in percent")
    return fold("The numbers behind the chart", measured)


def _show_percent(share: float | None) -> str:
    return "–" if share is None else number(100 * share, (0, 0.01))


def _list_unmeasured(found: Mapping[str, Distances]) -> Iterable[Child]:
    for name, one in found.items():
        if one.left_out:
            some = ", ".join(one.left_out[:3]) + ("…" if len(one.left_out) > 3 else "")
            yield join(
                (tag("b", name), f": {len(one.left_out)} tensors have no like in the base: {some}")
            )


def truncation(name: str, details: Mapping[str, Any]) -> Markup | None:
    """Return a table of the tensors by how much is left out; None where no adapter was made of a merge."""
    adapter = details.get("adapter")
    errors = adapter.get("errors") if isinstance(adapter, Mapping) else None
    if not isinstance(adapter, Mapping) or not errors:
        return None
    ranks = adapter.get("ranks", {})
    worst = sorted(errors.items(), key=lambda item: -item[1])
    if worst[0][1] == 0:
        return tag("p", f"An adapter of rank {_show_ranks(ranks)}, which leaves nothing out.")
    rows = [
        [
            tag("th", tag("code", tensor), scope="row"),
            tag("td", str(ranks.get(tensor.removesuffix(".weight"), "–"))),
            tag("td", f"{error:.3g}"),
        ]
        for tensor, error in worst
    ]
    middle = worst[len(worst) // 2][1]
    return tag(
        "div",
        tag(
            "p",
            f"An adapter of rank {_show_ranks(ranks)}, which leaves out up to {worst[0][1]:.3g} of a "
            f"tensor's change ({middle:.3g} of the middle one's), in Frobenius norms.",
        ),
        fold(f"{name}: what its rank leaves out", table(["Tensor", "Rank", "Left out"], rows)),
    )


def _show_ranks(ranks: Mapping[str, int]) -> str:
    known = sorted({min(ranks.values()), max(ranks.values())}) if ranks else []
    return " to ".join(map(str, known)) or "0"
