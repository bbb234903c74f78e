"""Heat maps of reports: cells with their colours, and the weights of a merge by layer."""

from __future__ import annotations

from emberge.contracts import Figure, HeatMap, MergeDetails
from emberge_statistics import sort_layers

from emberge_report.formats import count_digits, format_number


def draw_cells(heat_map: HeatMap) -> list[list[tuple[str, str, float] | None]]:
    """Return (text, class of the colour, its strength in percent) of each number; None without one.

    If there are numbers below 0, they have another colour than those above 0, and the strength is from 0
    in both directions; else it goes from the lowest number to the highest.
    """
    numbers = [v for row in heat_map.values for v in row if v is not None] or [0.0]
    low, high, digits = min(numbers), max(numbers), count_digits(numbers)
    signed = low < 0
    start = 0.0 if signed or low < high / 2 else low
    span = max(abs(low), abs(high)) - start

    def describe(value: float) -> tuple[str, str, float]:
        share = (abs(value) - start) / span if span else 0.5
        text = format_number(value, digits, with_sign=signed)
        return text, "c1" if value < 0 else "c0", round(5 + 50 * share, 1)

    return [[None if v is None else describe(v) for v in row] for row in heat_map.values]


def read_layer_weights(step: str, details: MergeDetails) -> Figure | None:
    """Return the heat map, layers by labels, of the weights that a strategy computed; None without any."""
    weights = details.weights_by_layer
    layers = sort_layers(weights)
    labels = list(dict.fromkeys(label for layer in layers for label in weights[layer]))
    if not labels:
        return None
    return Figure(
        title=f"{step}: weights by layer",
        caption="The strategy computed these weights from the models. Where the tensors of a layer have "
        "weights of their own, it is their mean over elements.",
        heat_map=HeatMap(
            rows=[layer.removeprefix("layers.") for layer in layers],
            columns=labels,
            values=[[weights[layer].get(label) for label in labels] for layer in layers],
        ),
    )
