"""Figures in the details of steps' artifacts: read, checked, and ready to be drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from emberge import DataError
from emberge.tensor_names import layer_order
from markupsafe import Markup
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from emberge_report.charts import Line, line_chart, looks, tree_chart
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

    @classmethod
    def of_numbers(cls, corner: str, names: Sequence[str], columns: Mapping[str, Any]) -> TableData:
        """Return a table with a row of numbers for each name, below `corner` and the columns' names."""
        values = [*zip(*columns.values(), strict=True)]
        digits = count_digits([v for row in values for v in row if v is not None]) + 1
        rows: list[list[str | int | float | None]] = [
            [name, *(None if v is None else format_number(v, digits) for v in row)]
            for name, row in zip(names, values, strict=True)
        ]
        return cls(head=[corner, *columns], rows=rows)


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


class Lines(_Strict):
    """Labels of the axes and of the places on the x axis, and a number for each place in each series."""

    x: str
    y: str
    labels: list[str] = Field(min_length=1)
    series: dict[str, list[float | None]] = Field(min_length=1)

    @model_validator(mode="after")
    def _fits(self) -> Lines:
        for name, values in self.series.items():
            _require_length(f"the series '{name}'", values, self.labels, "labels")
        return self

    def draw(self, title: str) -> Markup:
        """Return the lines as a chart."""
        looks_by_name = looks(self.series)
        lines = [
            Line(
                name,
                looks_by_name[name],
                [(float(i), value) for i, value in enumerate(values) if value is not None],
                marked=True,
            )
            for name, values in self.series.items()
        ]
        return line_chart(lines, x=self.x, y=self.y, label=title, places=self.labels)

    def table(self) -> TableData:
        """Return a table of all numbers, with a row for each label."""
        return TableData.of_numbers(self.x, self.labels, self.series)


class Tree(_Strict):
    """Names of leaves in their order, and unions of two nodes at a height, the lowest first.

    A node below the number of names is a leaf; higher numbers count the unions.
    """

    x: str
    names: list[str] = Field(min_length=2)
    unions: list[
        Annotated[
            tuple[int, int, float], BeforeValidator(lambda v: tuple(v) if type(v) is list else v)
        ]
    ]
    label: str = "Tree of clusters"

    @model_validator(mode="after")
    def _fits(self) -> Tree:
        count = len(self.names)
        nodes = [node for first, second, _ in self.unions for node in (first, second)]
        are_earlier = all(0 <= node < count + i // 2 for i, node in enumerate(nodes))
        if sorted(nodes) != list(range(2 * count - 2)) or not are_earlier:
            raise ValueError(f"its unions do not make one tree of {count} names")
        return self

    def draw(self, title: str) -> Markup:
        """Return the tree as a chart."""
        return tree_chart(self.names, self.unions, x=self.x, label=self.label)

    def table(self) -> TableData:
        """Return a table of all unions with the names below each."""
        below = [[name] for name in self.names]
        for first, second, _ in self.unions:
            below.append([*below[first], *below[second]])
        rows: list[list[str | int | float | None]] = [
            [", ".join(members), f"{height:.6g}"]
            for members, (*_, height) in zip(below[len(self.names) :], self.unions, strict=True)
        ]
        return TableData(head=["Union of", self.x], rows=rows)


class Figure(_Strict):
    """Figure with its heading, caption and table, and one kind of data."""

    title: str = ""
    caption: str = ""
    table: TableData | None = None
    heat_map: HeatMap | None = None
    lines: Lines | None = None
    tree: Tree | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Figure:
        if sum(kind is not None for kind in (self.heat_map, self.lines, self.tree)) != 1:
            raise ValueError("a figure is one of 'heat_map', 'lines', 'tree'")
        return self

    def draw(self) -> Markup:
        """Return the chart; empty for a heat map, which is a table of the page."""
        chart = self.lines or self.tree
        return chart.draw(self.title) if chart is not None else Markup()

    def table_below(self) -> TableData | None:
        """Return the figure's table, else one of the numbers of its chart; None for a heat map alone."""
        chart = self.lines or self.tree
        return self.table or (chart.table() if chart is not None else None)


def read_figures(step: str, details: Mapping[str, Any]) -> list[Figure]:
    """Return the figures in the details of a step's artifact.

    Raises:
        DataError: if a figure is invalid; the message has the step and the field.
    """
    return _check(list[Figure], f"'{step}': figures", details.get("figures", []))


def weights_by_layer(step: str, details: Mapping[str, Any]) -> Figure | None:
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
    """Return a value of an artifact, validated as `kind`; `place` is its step and field.

    Raises:
        DataError: if it is invalid; the message has the place and the wrong fields below it.
    """
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        faults = (
            f"{'.'.join([place, *map(str, e['loc'])])}: {e['msg'].removeprefix('Value error, ')}"
            for e in error.errors()
        )
        raise DataError("; ".join(dict.fromkeys(faults))) from None
