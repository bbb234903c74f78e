"""A comparison of two models' weights: sums by layer and part, shown as a table and as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from emberge.tensor_names import EMBEDDING_LAYER, PARTS, Part, layer_order
from emberge.wording import join_some, plural

LOW_COSINE = 0.7
"""Cosine of a layer below which two models are too far apart to be averaged (BidirLM, arXiv:2604.02045)."""

MATRICES: tuple[Part, ...] = tuple(part for part in PARTS if part != "vector")


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
    def norms(self) -> tuple[float, float, float]:
        """Norms ‖a‖, ‖b‖ and ‖b - a‖."""
        return math.sqrt(self.first), math.sqrt(self.second), math.sqrt(self.change)

    @property
    def sign_conflicts(self) -> float:
        """Share of the elements that are above zero in one tensor and below zero in the other."""
        return self.conflicts / self.elements if self.elements else 0.0


Number = Callable[[PairSums], float | None]
Views = tuple[tuple[str, tuple[Part, ...]], ...]
# A whole layer is its matrices; norms and biases are few numbers, near one another in all models.
VIEWS: Views = (("total", MATRICES), ("attention", ("attention",)), ("MLP", ("mlp",)))
# Sums by layer and part.
ByLayer = Mapping[tuple[str, Part], PairSums]


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
    weights: ByLayer
    changes: ByLayer = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def layers(self) -> list[str]:
        """Layers with matrices, in order: embeddings, the text trunk's by number, other towers', others."""
        return layer_order(layer for layer, part in self.weights if part in MATRICES)

    def of(self, layer: str, parts: Collection[Part] = MATRICES) -> PairSums | None:
        """Return the sums over a layer's weights in some parts; None if the layer has none of these parts."""
        return _sum_parts(self.weights, layer, parts)

    def changes_of(self, layer: str, parts: Collection[Part] = MATRICES) -> PairSums | None:
        """Return the sums over a layer's changes from the base; None if they were not measured."""
        return _sum_parts(self.changes, layer, parts)

    def whole_layers(self) -> dict[str, PairSums]:
        """Return the sums over each layer's weights, including norms and biases, in layer order."""
        sums: dict[str, PairSums] = {}
        for (layer, _), part_sums in self.weights.items():
            sums[layer] = sums.get(layer, PairSums()) + part_sums
        return {layer: sums[layer] for layer in layer_order(sums)}

    def total(self) -> PairSums:
        """Return the sums over all weights, including vectors."""
        return sum(self.weights.values(), PairSums())

    def change_cosine(self) -> float | None:
        """Return the cosine of both models' changes from the base, over all weights; None without a base."""
        return sum(self.changes.values(), PairSums()).cosine

    def mean_cosine(self, parts: Collection[Part] = MATRICES) -> float | None:
        """Return the mean cosine of some parts over the text trunk's layers; None without such layers."""
        sums = (self.of(layer, parts) for layer in self.layers if _is_trunk_layer(layer))
        return _mean_known(found.cosine for found in sums if found is not None)

    def low_layers(self) -> list[str]:
        """Return the layers of the text trunk, and the embeddings, whose cosine is below LOW_COSINE."""
        compared_layers = (la for la in self.layers if _is_trunk_layer(la) or la == EMBEDDING_LAYER)
        cosines = {la: sums.cosine for la in compared_layers if (sums := self.of(la)) is not None}
        return [la for la, cosine in cosines.items() if cosine is not None and cosine < LOW_COSINE]

    @property
    def title(self) -> str:
        """The names of the models in tables and files."""
        base_text = f", changes from {self.base}" if self.base is not None else ""
        return f"A {self.first}, B {self.second}{base_text}"

    def table(self) -> list[str]:
        """Return the table as lines: a row per layer, the embeddings as E, and the means of the trunk."""
        columns = list(_list_columns(self))
        head = ["layer", *(view for _, view, _ in columns)]
        rows = [[_shorten_layer(la), *(cell(la) for _, _, cell in columns)] for la in self.layers]
        if any(map(_is_trunk_layer, self.layers)):
            means = [_show_number(self.mean_cosine(parts), 4) for _, parts in VIEWS]
            rows.append(["mean", *means, *[""] * (len(columns) - len(means))])
        widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
        titles = _format_titles([title for title, _, _ in columns], widths)
        return [titles, *(_format_line(row, widths) for row in (head, *rows))]

    def remarks(self) -> list[str]:
        """Return the notes, and a warning of layers that are too far apart to be averaged."""
        low_names = [_shorten_layer(layer) for layer in self.low_layers()]
        distance_warnings = [
            f"the cosine is below {LOW_COSINE} in {plural('layer') if len(low_names) > 1 else 'layer'} "
            f"{join_some(low_names, 6)}: an average of weights this far apart is rarely of "
            "use before it is trained"
        ]
        return [*self.notes, *(distance_warnings if low_names else [])]

    def plain(self) -> dict[str, Any]:
        """Return all numbers as JSON, by layer and part; null where a number is undefined.

        A layer's `total` is over its matrices, its `vector` over its norms and biases.
        """
        views = (*VIEWS, *((part, (part,)) for part in PARTS if part not in ("attention", "mlp")))
        return {
            "first": self.first,
            "second": self.second,
            "base": self.base,
            "mean_cosine": {view.lower(): self.mean_cosine(parts) for view, parts in VIEWS},
            "layers": {
                _shorten_layer(layer): {
                    view.lower(): _collect_numbers(self, layer, parts)
                    for view, parts in views
                    if self.of(layer, parts) is not None
                }
                for layer in self.whole_layers()
            },
            "below": {
                "cosine": LOW_COSINE,
                "layers": [_shorten_layer(layer) for layer in self.low_layers()],
            },
            "left_out": [*self.left_out],
            "notes": [*self.notes],
        }


def _is_trunk_layer(layer: str) -> bool:
    """Return whether a layer is one of the text trunk's numbered layers."""
    space, _, number = layer.rpartition(".")
    return space == "layers" and number.isdecimal()


def _sum_parts(sums: ByLayer, layer: str, parts: Collection[Part]) -> PairSums | None:
    selected = [one for (place, part), one in sums.items() if place == layer and part in parts]
    return sum(selected, PairSums()) if selected else None


def _mean_known(values: Iterable[float | None]) -> float | None:
    known_values = [value for value in values if value is not None]
    return sum(known_values) / len(known_values) if known_values else None


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
    first, *numeric_cells = cells
    aligned_cells = (
        cell.rjust(width) for cell, width in zip(numeric_cells, widths[1:], strict=True)
    )
    return "  ".join((first.ljust(widths[0]), *aligned_cells)).rstrip()


def _shorten_layer(layer: str) -> str:
    """Return a layer's short name: E for the embeddings, a number in the text trunk."""
    return "E" if layer == EMBEDDING_LAYER else layer.removeprefix("layers.")


def _list_columns(found: WeightComparison) -> Iterator[tuple[str, str, Callable[[str], str]]]:
    """Yield (title, view, function that returns a layer's cell) for each column after the first."""
    for view, parts in VIEWS:
        yield "cosine", view, _build_cell_writer(found, parts, lambda one: one.cosine, 4)
    for view, parts in VIEWS:
        yield (
            "distance, % of A",
            view,
            _build_cell_writer(found, parts, lambda one: 100 * one.distance, 2),
        )
    yield "change", "norm", _build_cell_writer(found, MATRICES, lambda one: one.norms[2], 3)
    yield (
        "signs",
        "apart %",
        _build_cell_writer(found, MATRICES, lambda one: 100 * one.sign_conflicts, 2),
    )
    if found.base is None:
        return
    number_columns: tuple[tuple[str, str, Number, int], ...] = (
        ("changes from the base", "norm A", lambda one: one.norms[0], 3),
        ("changes from the base", "norm B", lambda one: one.norms[1], 3),
        ("changes from the base", "cosine", lambda one: one.cosine, 4),
        ("changes from the base", "apart %", lambda one: 100 * one.sign_conflicts, 2),
    )
    for title, view, number, digits in number_columns:
        yield title, view, _build_cell_writer(found, MATRICES, number, digits, changes=True)


def _build_cell_writer(
    found: WeightComparison,
    parts: tuple[Part, ...],
    number: Number,
    digits: int,
    changes: bool = False,
) -> Callable[[str], str]:
    sums_of = found.changes_of if changes else found.of

    def text(layer: str) -> str:
        sums = sums_of(layer, parts)
        return "" if sums is None else _show_number(number(sums), digits)

    return text


def _show_number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _collect_numbers(
    found: WeightComparison, layer: str, parts: tuple[Part, ...]
) -> dict[str, Any]:
    weights, changes = found.of(layer, parts), found.changes_of(layer, parts)
    assert weights is not None
    values_by_key: dict[str, Any] = {
        "elements": int(weights.elements),
        "cosine": weights.cosine,
        "distance": _drop_non_finite(weights.distance),
        "norm_first": weights.norms[0],
        "norm_second": weights.norms[1],
        "norm_change": weights.norms[2],
        "sign_conflicts": weights.sign_conflicts,
    }
    if changes is not None:
        values_by_key["changes"] = {
            "cosine": changes.cosine,
            "norm_first": changes.norms[0],
            "norm_second": changes.norms[1],
            "sign_conflicts": changes.sign_conflicts,
        }
    return values_by_key


def _drop_non_finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
