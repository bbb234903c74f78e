"""Figures in the details of steps' artifacts: read, checked, and ready to be drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from emberge import DataError
from emberge_statistics import layer_order
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from emberge_report.formats import count_digits, format_number

Checked = TypeVar("Checked")


class _Strict(BaseModel):
    """Pydantic model that refuses unknown keys and numbers that are not finite."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class TableData(_Strict):
    """Table below a figure: a title, a head, and rows of words or numbers."""

    title: str = "The numbers behind the figure"
    head: list[str] = []
    rows: list[list[str | int | float | None]] = []


class HeatMap(_Strict):
    """Names of rows and columns, and a row of numbers for each; null is an empty cell."""

    rows: list[str] = Field(min_length=1)
    columns: list[str] = Field(min_length=1)
    values: list[list[float | None]]

    @model_validator(mode="after")
    def _fits(self) -> HeatMap:
        _require_length("values", self.values, self.rows, "rows")
        for name, row in zip(self.rows, self.values, strict=True):
            _require_length(f"the row '{name}'", row, self.columns, "columns")
        return self

    def cells(self) -> list[list[tuple[str, str, float] | None]]:
        """Return (text, class of the colour, its strength in percent) of each number; None without one.

        If there are numbers below 0, they have another colour than those above 0, and the strength is from 0
        in both directions; else it goes from the lowest number to the highest.
        """
        numbers = [v for row in self.values for v in row if v is not None] or [0.0]
        low, high, digits = min(numbers), max(numbers), count_digits(numbers)
        signed = low < 0
        start = 0.0 if signed or low < high / 2 else low
        span = max(abs(low), abs(high)) - start

        def describe(value: float) -> tuple[str, str, float]:
            share = (abs(value) - start) / span if span else 0.5
            text = format_number(value, digits, with_sign=signed)
            return text, "c1" if value < 0 else "c0", round(5 + 50 * share, 1)

        return [[None if v is None else describe(v) for v in row] for row in self.values]


class Figure(_Strict):
    """Heat map, table or both, with a heading and a caption."""

    title: str = ""
    caption: str = ""
    heat_map: HeatMap | None = None
    table: TableData | None = None

    @model_validator(mode="after")
    def _shows_something(self) -> Figure:
        if self.heat_map is None and self.table is None:
            raise ValueError("a figure has a 'heat_map', a 'table' or both")
        return self


def read_figures(step: str, details: Mapping[str, Any]) -> list[Figure]:
    """Return the figures in the details of a step's artifact.

    Raises:
        DataError: if a figure is invalid; the message has the step and the field.
    """
    return _check(list[Figure], f"'{step}': figures", details.get("figures", []))


def read_layer_weights(step: str, details: Mapping[str, Any]) -> Figure | None:
    """Return the heat map, layers by labels, of `weights_by_layer` in a step's details; None without any.

    Raises:
        DataError: if they are not numbers; the message has the step and the place.
    """
    weights = details.get("weights_by_layer") or {}
    layers = layer_order(weights)
    labels = list(dict.fromkeys(label for layer in layers for label in weights[layer]))
    if not labels:
        return None
    heat_map = {
        "rows": [layer.removeprefix("layers.") for layer in layers],
        "columns": labels,
        "values": [[weights[layer].get(label) for label in labels] for layer in layers],
    }
    return Figure(
        title=f"{step}: weights by layer",
        caption="The strategy computed these weights from the models. Where the tensors of a layer have "
        "weights of their own, it is their mean over elements.",
        heat_map=_check(HeatMap, f"'{step}': weights_by_layer", heat_map),
    )


def _require_length(what: str, values: Sequence[Any], names: Sequence[str], names_are: str) -> None:
    if len(values) != len(names):
        raise ValueError(f"{what} has {len(values)} values for {len(names)} {names_are}")


def _check(kind: type[Checked], place: str, value: Any) -> Checked:
    """Return a value of an artifact, validated as `kind`; `place` is its step and field."""
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        faults = (
            f"{'.'.join([place, *map(str, e['loc'])])}: {e['msg'].removeprefix('Value error, ')}"
            for e in error.errors()
        )
        raise DataError("; ".join(dict.fromkeys(faults))) from None
