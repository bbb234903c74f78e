"""Models of the figures in an artifact's details: data to draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from emberge import DataError
from emberge.tensor_names import layer_order
from emberge.wording import join_some
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    ValidationError,
    model_validator,
)

from emberge_report.charts.heat_map import Values, digits_of, formatted

Checked = TypeVar("Checked", bound=BaseModel)


class _Strict(BaseModel):
    """Pydantic model that refuses unknown keys and numbers that are not finite."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class TableData(_Strict):
    """Table beside a figure: a title, a head, and rows of words or numbers."""

    title: str = "The numbers behind the figure"
    head: list[str] = []
    rows: list[list[str | int | float | None]] = []


class HeatMapData(_Strict):
    """Names of rows and columns, and a row of numbers for each; null is an empty cell."""

    rows: list[str] = Field(min_length=1)
    columns: list[str] = Field(min_length=1)
    values: list[list[float | None]]

    @model_validator(mode="after")
    def _fits(self) -> HeatMapData:
        if len(self.values) != len(self.rows):
            raise ValueError(f"there are {len(self.rows)} rows, and values for {len(self.values)}")
        for name, row in zip(self.rows, self.values, strict=True):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"the row '{name}' has {len(row)} values for {len(self.columns)} columns"
                )
        return self

    @property
    def table(self) -> TableData:
        """Table of all numbers, with the longer side of the map downwards."""
        if len(self.rows) < len(self.columns):
            return number_table("", self.columns, self.rows, [*zip(*self.values, strict=True)])
        return number_table("", self.rows, self.columns, self.values)


def number_table(
    corner: str, names: Sequence[str], columns: Sequence[str], values: Values
) -> TableData:
    """Return a table with a row of numbers for each name, under `corner` and the names of the columns."""
    magnitudes = [abs(v) for row in values for v in row if v is not None]
    digits = digits_of(max(magnitudes, default=0.0)) + 1
    rows: list[list[str | int | float | None]] = [
        [name, *(None if v is None else formatted(v, digits) for v in row)]
        for name, row in zip(names, values, strict=True)
    ]
    return TableData(head=[corner, *columns], rows=rows)


def _read_union(value: Any) -> Any:
    """Return [node, node, height] as a tuple, and any other value unchanged."""
    return tuple(value) if isinstance(value, list) else value


class LinesData(_Strict):
    """Labels of the axes and of the places on the x axis, and a number for each place in each series."""

    x: str
    y: str
    labels: list[str] = Field(min_length=1)
    series: dict[str, list[float | None]] = Field(min_length=1)

    @model_validator(mode="after")
    def _fits(self) -> LinesData:
        for name, values in self.series.items():
            if len(values) != len(self.labels):
                raise ValueError(
                    f"the series '{name}' has {len(values)} values for {len(self.labels)} labels"
                )
        return self

    @property
    def table(self) -> TableData:
        """Table of all numbers, with a row for each label."""
        return number_table(
            self.x, self.labels, [*self.series], [*zip(*self.series.values(), strict=True)]
        )


class TreeData(_Strict):
    """Names of leaves in their order, and unions of two nodes at a height, the lowest first.

    A node below the number of names is a leaf; higher numbers count the unions.
    """

    x: str
    names: list[str] = Field(min_length=2)
    unions: list[Annotated[tuple[int, int, float], BeforeValidator(_read_union)]]
    label: str = "Tree of clusters"

    @model_validator(mode="after")
    def _fits(self) -> TreeData:
        count = len(self.names)
        nodes = [node for first, second, _ in self.unions for node in (first, second)]
        are_earlier = all(0 <= node < count + i // 2 for i, node in enumerate(nodes))
        if sorted(nodes) != list(range(2 * count - 2)) or not are_earlier:
            raise ValueError(f"its unions do not make one tree of {count} names")
        return self

    @property
    def table(self) -> TableData:
        """Table of all unions with the names below each."""
        below = [[name] for name in self.names]
        for first, second, _ in self.unions:
            below.append([*below[first], *below[second]])
        rows: list[list[str | int | float | None]] = [
            [", ".join(members), f"{height:.6g}"]
            for members, (*_, height) in zip(below[len(self.names) :], self.unions, strict=True)
        ]
        return TableData(head=["Union of", self.x], rows=rows)


class FigureData(_Strict):
    """Figure with its heading, caption and table, and one kind of data."""

    title: str = ""
    caption: str = ""
    table: TableData | None = None
    heat_map: HeatMapData | None = None
    lines: LinesData | None = None
    tree: TreeData | None = None

    @model_validator(mode="after")
    def _is_one(self) -> FigureData:
        kinds = ("heat_map", "lines", "tree")
        if sum(getattr(self, kind) is not None for kind in kinds) != 1:
            quoted = [f"'{kind}'" for kind in kinds]
            raise ValueError(f"a figure is one of {join_some(quoted, len(kinds))}")
        return self


def figure_data(step: str, entries: Any) -> list[FigureData]:
    """Return a step's figures, checked.

    Raises:
        DataError: if a figure is invalid; the message has the step and the field.
    """
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise DataError(f"'{step}': figures must be a list, not {_cut_value(entries)}")
    return [
        checked(FigureData, f"'{step}': figures[{i}]", entry) for i, entry in enumerate(entries)
    ]


def checked(kind: type[Checked], location: str, value: Any) -> Checked:
    """Return a value of an artifact, validated as `kind`; `place` is its step and field.

    Raises:
        DataError: if it is invalid; the message has the place and the wrong fields below it.
    """
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise DataError("; ".join(dict.fromkeys(_describe_faults(location, error)))) from None


# In place of pydantic's, which name classes.
_MESSAGES = {"model_type": "must be a mapping"}


def _describe_faults(location: str, error: ValidationError) -> Iterator[str]:
    for fault in error.errors():
        field = "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in fault["loc"])
        value_text = (
            "" if isinstance(fault["input"], dict) else f", not {_cut_value(fault['input'])}"
        )
        text = _MESSAGES.get(fault["type"], fault["msg"])
        message = text.removeprefix("Value error, ")
        yield f"{location}{field}: {message[:1].lower()}{message[1:]}{value_text}"


def _cut_value(value: Any) -> str:
    written = repr(value)
    return written if len(written) <= 40 else f"{written[:39]}…"


COMPUTED = (
    "The strategy computed these weights from the models. Where the tensors of a layer have weights of their "
    "own, it is their mean over elements."
)


class _Numbers(RootModel[dict[str, dict[str, float]]]):
    """Numbers by layer and label."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


def weights_by_layer(step: str, details: Mapping[str, Any]) -> FigureData | None:
    """Return the heat map, labels by layers, and the table of `weights_by_layer` in a step's details.

    The result is None if the details have no such weights.

    Raises:
        DataError: if they are not a mapping of numbers; the message has the step and the place.
    """
    content = details.get("weights_by_layer", {})
    weights = checked(_Numbers, f"'{step}': weights_by_layer", content).root
    layers = layer_order(weights)
    labels = list(dict.fromkeys(label for layer in layers for label in weights[layer]))
    if not labels:
        return None
    names = [layer.removeprefix("layers.") for layer in layers]
    values = [[weights[layer].get(label) for label in labels] for layer in layers]
    return FigureData(
        title=f"{step}: weights by layer",
        caption=COMPUTED,
        heat_map=HeatMapData(
            rows=labels, columns=names, values=[*map(list, zip(*values, strict=True))]
        ),
        table=number_table("Layer", names, labels, values),
    )
