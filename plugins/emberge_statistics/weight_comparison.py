"""A comparison of two models' weights: sums by layer and part, and their table."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from emberge.tensor_names import EMBEDDING_LAYER, FINAL_LAYER
from emberge.wording import join_some, make_plural

LOW_COSINE = 0.7
"""Cosine of a layer below which two models are too far apart to be averaged (BidirLM, arXiv:2604.02045)."""
LayerPart = Literal["attention", "mlp", "embedding", "other", "vector"]
MATRIX_PARTS: tuple[LayerPart, ...] = ("attention", "mlp", "embedding", "other")


class Norms(NamedTuple):
    """Norms ‖a‖, ‖b‖ and ‖b - a‖ (Frobenius) of two tensors a and b."""

    first: float
    second: float
    change: float


@dataclass(frozen=True, slots=True)
class PairSums:
    """Sums over the elements of two tensors a and b: of a², b² and (b - a)², and of opposite signs."""

    elements: float = 0.0
    first: float = 0.0
    second: float = 0.0
    change: float = 0.0
    conflicts: float = 0.0

    def __add__(self, other: PairSums) -> PairSums:
        return PairSums(
            self.elements + other.elements,
            self.first + other.first,
            self.second + other.second,
            self.change + other.change,
            self.conflicts + other.conflicts,
        )

    @property
    def cosine(self) -> float | None:
        """Cosine of a and b; None if one of them is all zero.

        It is computed from the distance of a and b. The inner product of two close models is nearly as large
        as the product of their norms, so rounding would hide the difference from 1.
        """
        a, b = math.sqrt(self.first), math.sqrt(self.second)
        if not a or not b:
            return None
        return max(-1.0, min(1.0, 1 - (self.change - (a - b) ** 2) / (2 * a * b)))

    @property
    def distance(self) -> float:
        """Relative distance ‖b - a‖ / ‖a‖ (Frobenius); infinite if `a` is all zeros."""
        if not self.first:
            return math.inf if self.change else 0.0
        return math.sqrt(self.change / self.first)

    @property
    def norms(self) -> Norms:
        """Norms of both tensors and of their difference."""
        return Norms(math.sqrt(self.first), math.sqrt(self.second), math.sqrt(self.change))

    @property
    def sign_conflicts(self) -> float:
        """Share of the elements that are above zero in one tensor and below zero in the other."""
        return self.conflicts / self.elements if self.elements else 0.0


SumsByLayer = Mapping[tuple[str, LayerPart], PairSums]


@dataclass(frozen=True)
class _Column:
    """A column of the table: a number of each layer's sums, or of the changes from the base."""

    title: str
    view: str
    number: Callable[[PairSums], float | None]
    digits: int
    parts: tuple[LayerPart, ...] = MATRIX_PARTS
    of_changes: bool = False


# A whole layer is its matrices; norms and biases are few numbers, near one another in all models.
_VIEWS: tuple[tuple[str, tuple[LayerPart, ...]], ...] = (
    ("total", MATRIX_PARTS),
    ("attention", ("attention",)),
    ("MLP", ("mlp",)),
)
_WEIGHT_COLUMNS = (
    *(_Column("cosine", view, lambda s: s.cosine, 4, parts) for view, parts in _VIEWS),
    *(
        _Column("distance, % of A", view, lambda s: 100 * s.distance, 2, parts)
        for view, parts in _VIEWS
    ),
    _Column("change", "norm", lambda s: s.norms.change, 3),
    _Column("signs", "apart %", lambda s: 100 * s.sign_conflicts, 2),
)
_FROM_BASE = "changes from the base"
_BASE_COLUMNS = (
    _Column(_FROM_BASE, "norm A", lambda s: s.norms.first, 3, of_changes=True),
    _Column(_FROM_BASE, "norm B", lambda s: s.norms.second, 3, of_changes=True),
    _Column(_FROM_BASE, "cosine", lambda s: s.cosine, 4, of_changes=True),
    _Column(_FROM_BASE, "apart %", lambda s: 100 * s.sign_conflicts, 2, of_changes=True),
)


@dataclass(frozen=True)
class WeightComparison:
    """A comparison of the models `first` and `second`.

    `weights` are the sums over the models' tensors. With a `base`, `changes` are the sums over the
    differences from the base. `left_out` contains the names of the tensors that are not compared, and `notes`
    the reasons.
    """

    first: str
    second: str
    base: str | None
    weights: SumsByLayer
    changes: SumsByLayer = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def layers(self) -> list[str]:
        """Layers with matrices, in order: embeddings, the text trunk's by number, other towers', others."""
        return sort_layers(layer for layer, part in self.weights if part in MATRIX_PARTS)

    def of(self, layer: str, parts: Collection[LayerPart] = MATRIX_PARTS) -> PairSums | None:
        """Return the sums over a layer's weights in some parts; None if the layer has none of these parts."""
        return _sum_parts(self.weights, layer, parts)

    def find_changes(
        self, layer: str, parts: Collection[LayerPart] = MATRIX_PARTS
    ) -> PairSums | None:
        """Return the sums over a layer's changes from the base; None if they were not measured."""
        return _sum_parts(self.changes, layer, parts)

    def sum_layers(self) -> dict[str, PairSums]:
        """Return the sums over each layer's weights, including norms and biases, in layer order."""
        sums: dict[str, PairSums] = {}
        for (layer, _), part_sums in self.weights.items():
            sums[layer] = sums.get(layer, PairSums()) + part_sums
        return {layer: sums[layer] for layer in sort_layers(sums)}

    def sum_all(self) -> PairSums:
        """Return the sums over all weights, including vectors."""
        return sum(self.weights.values(), PairSums())

    @property
    def title(self) -> str:
        """The names of the models above the table."""
        base_text = f", changes from {self.base}" if self.base is not None else ""
        return f"A {self.first}, B {self.second}{base_text}"

    def table(self) -> list[str]:
        """Return the table as lines: a row per layer, the embeddings as E, and the means of the trunk."""
        columns = (*_WEIGHT_COLUMNS, *(_BASE_COLUMNS if self.base is not None else ()))
        head = ["layer", *(column.view for column in columns)]
        rows = [
            [_shorten_layer(layer), *(self._write_cell(layer, column) for column in columns)]
            for layer in self.layers
        ]
        if any(map(_is_trunk_layer, self.layers)):
            means = [_show_number(self._mean_cosine(parts), 4) for _, parts in _VIEWS]
            rows.append(["mean", *means, *[""] * (len(columns) - len(means))])
        widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
        titles = _format_titles([column.title for column in columns], widths)
        return [titles, *(_format_line(row, widths) for row in (head, *rows))]

    def list_remarks(self) -> list[str]:
        """Return the notes, and a warning of layers that are too far apart to be averaged."""
        layers = (la for la in self.layers if _is_trunk_layer(la) or la == EMBEDDING_LAYER)
        cosines = {layer: sums.cosine for layer in layers if (sums := self.of(layer))}
        low = [
            _shorten_layer(la)
            for la, one in cosines.items()
            if one is not None and one < LOW_COSINE
        ]
        if not low:
            return [*self.notes]
        noun = make_plural("layer") if len(low) > 1 else "layer"
        return [
            *self.notes,
            f"the cosine is below {LOW_COSINE} in {noun} {join_some(low, 6)}: an average of weights this far "
            "apart is rarely of use before it is trained",
        ]

    def _mean_cosine(self, parts: Collection[LayerPart]) -> float | None:
        """Return the mean cosine of some parts over the text trunk's layers; None without such layers."""
        sums = (self.of(layer, parts) for layer in self.layers if _is_trunk_layer(layer))
        cosines = [one.cosine for one in sums if one is not None and one.cosine is not None]
        return sum(cosines) / len(cosines) if cosines else None

    def _write_cell(self, layer: str, column: _Column) -> str:
        sums = (self.find_changes if column.of_changes else self.of)(layer, column.parts)
        return "" if sums is None else _show_number(column.number(sums), column.digits)


def _is_trunk_layer(layer: str) -> bool:
    """Return whether a layer is one of the text trunk's numbered layers."""
    space, _, number = layer.rpartition(".")
    return space == "layers" and number.isdecimal()


def _sum_parts(sums: SumsByLayer, layer: str, parts: Collection[LayerPart]) -> PairSums | None:
    selected = [one for (name, part), one in sums.items() if name == layer and part in parts]
    return sum(selected, PairSums()) if selected else None


def _format_titles(titles: Sequence[str], widths: Sequence[int]) -> str:
    """Return the table's first line: each title once, above the first of its columns."""
    line = ""
    column = widths[0]
    for i, (title, width) in enumerate(zip(titles, widths[1:], strict=True)):
        if i == 0 or titles[i - 1] != title:
            line = f"{line:<{column}}  {title}"
        column += 2 + width
    return line


def _format_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *numbers = cells
    aligned = (cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True))
    return "  ".join((first.ljust(widths[0]), *aligned)).rstrip()


def _shorten_layer(layer: str) -> str:
    """Return a layer's short name: E for the embeddings, a number in the text trunk."""
    return "E" if layer == EMBEDDING_LAYER else layer.removeprefix("layers.")


def _show_number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def sort_layers(layers: Iterable[str]) -> list[str]:
    """Return layers in order: embeddings, layers by number, other towers' layers, last norm, the rest."""
    return sorted(dict.fromkeys(layers), key=_sort_key)


def _sort_key(layer: str) -> tuple[int, str, int]:
    if layer == EMBEDDING_LAYER:
        return 0, "", 0
    tower, _, number = layer.rpartition(".")
    if number.isdecimal():
        return 1 if tower == "layers" else 2, tower, int(number)
    return (3 if layer == FINAL_LAYER else 4), layer, 0
