"""Facts of a step's result that other steps read, and their form in `artifact.json`; loads no torch.

An `Artifact` has `Figure`, `BaseFacts`, `AdapterFacts` and `TrainingWork` as fields. Its `details` are
`TrainingDetails`, `MergeDetails`, `DataDetails`, or a step's own, which no other step reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from emberge.contracts.dataset import DataOrigin

ModelOrigin: TypeAlias = Literal["trained", "merged", "chosen", "changed"]
"""Way in which a model was made; "changed" is a change without training, such as cutting layers."""
Checked = TypeVar("Checked")


class Recorded:
    """Base of dataclasses in `artifact.json`: a key that is no field is refused."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"extra": "forbid"}


def to_json(value: Any) -> Any:
    """Return a dataclass as values of JSON, without fields that have their defaults."""
    from pydantic import TypeAdapter

    return TypeAdapter(type(value)).dump_python(value, mode="json", exclude_defaults=True)


def from_json(value_type: type[Checked], value: Any, label: str = "") -> Checked:
    """Return values of JSON as a dataclass or another type.

    Raises:
        ValueError: if a field is missing, unknown or of another type; names each by its path below `label`.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(value_type).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        problems = (
            f"{'.'.join(filter(None, [label, *map(str, one['loc'])]))}: "
            f"{one['msg'].removeprefix('Value error, ')}"
            for one in error.errors()
        )
        raise ValueError("; ".join(dict.fromkeys(problems))) from None


@dataclass(frozen=True, kw_only=True)
class HeatMap(Recorded):
    """Names of rows and columns, and the numbers of each row; None is an empty cell."""

    __pydantic_config__: ClassVar = {"extra": "forbid", "allow_inf_nan": False}

    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]

    def __post_init__(self) -> None:
        _require_length("values", self.values, self.rows, "rows")
        for name, row in zip(self.rows, self.values, strict=True):
            _require_length(f"the row '{name}'", row, self.columns, "columns")


def _require_length(what: str, values: Sequence[Any], names: Sequence[str], noun: str) -> None:
    if len(values) != len(names) or not names:
        raise ValueError(f"{what} has {len(values)} values for {len(names)} {noun}")


@dataclass(frozen=True, kw_only=True)
class FigureTable(Recorded):
    """Table of a figure: a title, a head, and rows of words or numbers."""

    title: str = "The numbers behind the figure"
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str | int | float | None]] = ()


@dataclass(frozen=True, kw_only=True)
class Figure(Recorded):
    """Figure for reports: a heat map, a table or both, with a heading and a caption."""

    title: str = ""
    caption: str = ""
    heat_map: HeatMap | None = None
    table: FigureTable | None = None

    def __post_init__(self) -> None:
        if self.heat_map is None and self.table is None:
            raise ValueError("a figure has a 'heat_map', a 'table' or both")


@dataclass(frozen=True)
class BaseFacts(Recorded):
    """Model that another was made from: its name in tables, reference in the recipe, and content's hash."""

    name: str = ""
    reference: str = ""
    fingerprint: str = ""


@dataclass(frozen=True, kw_only=True)
class AdapterFacts(Recorded):
    """Ranks of an adapter's matrices, the relative error of each truncated change, and tensors kept whole."""

    ranks: Mapping[str, int]
    errors: Mapping[str, float] = field(default_factory=dict)
    whole: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class UsedRows(Recorded):
    """Rows of a data set that a training used: their number `rows`, of all its rows (`of`)."""

    task: str = ""
    rows: int
    of: int
    source: DataOrigin = field(default_factory=DataOrigin)


@dataclass(frozen=True, kw_only=True)
class TrainingWork(Recorded):
    """Rows of each data set, examples and seconds that a training needed."""

    datasets: Mapping[str, UsedRows]
    examples: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TrainingDetails(TrainingWork):
    """Details of a trained model; `loss`, `sampler` and `max_length` are as a recipe writes them."""

    seed: int
    ranks: int = 1
    """Number that took the last steps."""
    steps: int
    last_loss: float
    """Mean over the last tenth of the steps."""
    checkpoints: Sequence[str] = ()
    backbone: Mapping[str, Any] = field(default_factory=dict)
    learning_rate: float
    loss: Any = None
    sampler: Any = None
    max_length: Any = None
    added: Mapping[str, str] = field(default_factory=dict)
    """Facts of a step that trains as a part of its work, such as teacher and student."""


@dataclass(frozen=True)
class TrainingCost(Recorded):
    """Cost relative to one training on all data: `rows` in units of the number `of` all rows."""

    times: float
    rows: int
    of: int


@dataclass(frozen=True, kw_only=True)
class MergeDetails(Recorded):
    """Details of a merged model or adapter; `strategy` has the links with all options, as in a recipe."""

    strategy: Sequence[str | Mapping[str, Any]]
    weights: Mapping[str, float]
    """Mean effective weight of each parent."""
    model_options: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """Each parent's own options of links."""
    weight_sum: float | None = None
    uses_weights: bool = True
    models: Mapping[str, str] = field(default_factory=dict)
    """Hash of each parent's content."""
    tensors: Mapping[str, int] = field(default_factory=dict)
    """Numbers of tensors that are merged, copied and dropped."""
    dtype: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Each parent's tensors outside its text trunk, if only the trunk was merged, as counts by first word."""
    left_out_tensors: str = ""
    """Names of tensors of any parent that the result lacks, those of all layers as one."""
    left_out_files: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Files of each parent that the result lacks, weights apart."""
    copied_heads: Sequence[str] = ()
    fetched: Sequence[Mapping[str, Any]] = ()
    """Files that were read from an address."""
    weights_by_layer: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Weights that the strategy computed, by layer and label."""
    keep: float = 0.0
    """Share of the base that was mixed into the merged model."""
    rules: Mapping[str, Sequence[str | Mapping[str, Any]]] = field(default_factory=dict)
    training_cost: TrainingCost | None = None


@dataclass(frozen=True, kw_only=True)
class RowCounts(Recorded):
    """Numbers of rows of a set before a step, kept, dropped and changed, and the number for each reason."""

    rows: int
    kept: int
    dropped: int = 0
    changed: int = 0
    notes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class DataDetails(Recorded):
    """Details of changed data: the counts of each set, sentences on them, and the file with `examples`."""

    changes: Mapping[str, RowCounts]
    sentences: Sequence[str] = ()
    examples: str = ""
    passages: int = 0


Details: TypeAlias = TrainingDetails | MergeDetails | DataDetails
