"""Numbers that a merge's strategy computed by layer, for pages and cards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emberge.tensor_names import layer_order
from pydantic import ConfigDict, RootModel

from emberge_report.page.figure_data import FigureData, HeatMapData, checked, number_table

COMPUTED = (
    "The strategy computed these weights from the models. Where the tensors of a layer have weights of their "
    "own, it is their mean over elements."
)


class _Numbers(RootModel[dict[str, dict[str, float]]]):
    """Numbers by layer and label."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


def weights_by_layer(step: str, details: Mapping[str, Any]) -> FigureData | None:
    """Return the heat map of what a step's details have under `weights_by_layer`, labels by layers.

    Beside it is a table with a row for each layer. None where there is nothing.

    Raises:
        DataError: with the step and the place, for what is no mapping of numbers.
    """
    given = details.get("weights_by_layer", {})
    found = checked(_Numbers, f"'{step}': weights_by_layer", given).root
    layers = layer_order(found)
    labels = list(dict.fromkeys(label for layer in layers for label in found[layer]))
    if not labels:
        return None
    names = [layer.removeprefix("layers.") for layer in layers]
    values = [[found[layer].get(label) for label in labels] for layer in layers]
    return FigureData(
        title=f"{step}: weights by layer",
        caption=COMPUTED,
        heat_map=HeatMapData(
            rows=labels, columns=names, values=[*map(list, zip(*values, strict=True))]
        ),
        table=number_table("Layer", names, labels, values),
    )
