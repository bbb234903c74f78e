"""A comparison as a table for the terminal, as JSON, and as figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from emberge.merging.comparing.comparison import (
    LOW_COSINE,
    MATRICES,
    Comparison,
    PairSums,
    is_trunk_layer,
)
from emberge.model_folder import EMBEDDING_LAYER, PARTS, Part
from emberge.wording import join_some, plural

__all__ = ["comparison_json", "comparison_table", "figures_of", "remarks_on"]

Number = Callable[[PairSums], float | None]
Views = tuple[tuple[str, tuple[Part, ...]], ...]
# A whole layer is its matrices; norms and biases are few numbers, near one another in all models.
VIEWS: Views = (("total", MATRICES), ("attention", ("attention",)), ("MLP", ("mlp",)))


def comparison_table(found: Comparison) -> list[str]:
    """Return the table as lines: a row for each layer, the embeddings as E, and the means of the trunk."""
    columns = list(_columns(found))
    head = ["layer", *(view for _, view, _ in columns)]
    rows = [[shown_layer(la), *(cell(la) for _, _, cell in columns)] for la in found.layers]
    if any(map(is_trunk_layer, found.layers)):
        means = [_shown(found.mean_cosine(parts), 4) for _, parts in VIEWS]
        rows.append(["mean", *means, *[""] * (len(columns) - len(means))])
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    titles = _titles([title for title, _, _ in columns], widths)
    return [titles, *(_line(row, widths) for row in (head, *rows))]


def _titles(titles: Sequence[str], widths: Sequence[int]) -> str:
    """Return the line above the heads: each title once, above the columns that it is for."""
    line = ""
    place = widths[0]
    for i, (title, width) in enumerate(zip(titles, widths[1:], strict=True)):
        if i == 0 or titles[i - 1] != title:
            line = f"{line:<{place}}  {title}"
        place += 2 + width
    return line


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = cells
    numbers = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
    return "  ".join((first.ljust(widths[0]), *numbers)).rstrip()


def shown_layer(layer: str) -> str:
    """Return a layer's short name: E for the embeddings, a number in the text trunk."""
    return "E" if layer == EMBEDDING_LAYER else layer.removeprefix("layers.")


def _columns(found: Comparison) -> Iterator[tuple[str, str, Callable[[str], str]]]:
    """Yield (title, view, text of a layer) of each column beside the layers' names."""
    for view, parts in VIEWS:
        yield "cosine", view, _cell(found, parts, lambda one: one.cosine, 4)
    for view, parts in VIEWS:
        yield "distance, % of A", view, _cell(found, parts, lambda one: 100 * one.distance, 2)
    yield "change", "norm", _cell(found, MATRICES, lambda one: one.norms[2], 3)
    yield "signs", "apart %", _cell(found, MATRICES, lambda one: 100 * one.sign_conflicts, 2)
    if found.base is None:
        return
    numbers: tuple[tuple[str, str, Number, int], ...] = (
        ("changes from the base", "norm A", lambda one: one.norms[0], 3),
        ("changes from the base", "norm B", lambda one: one.norms[1], 3),
        ("changes from the base", "cosine", lambda one: one.cosine, 4),
        ("changes from the base", "apart %", lambda one: 100 * one.sign_conflicts, 2),
    )
    for title, view, number, digits in numbers:
        yield title, view, _cell(found, MATRICES, number, digits, changes=True)


def _cell(
    found: Comparison, parts: tuple[Part, ...], number: Number, digits: int, changes: bool = False
) -> Callable[[str], str]:
    look = found.changes_of if changes else found.of

    def text(layer: str) -> str:
        sums = look(layer, parts)
        return "" if sums is None else _shown(number(sums), digits)

    return text


def _shown(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def remarks_on(found: Comparison) -> list[str]:
    """Return the notes of a comparison, and a warning of layers that are too far apart to be averaged."""
    low = [shown_layer(layer) for layer in found.low_layers()]
    far = [
        f"the cosine is below {LOW_COSINE} in {plural('layer') if len(low) > 1 else 'layer'} "
        f"{join_some(low, 6)}: an average of weights this far apart is rarely of use before it is trained"
    ]
    return [*found.notes, *(far if low else [])]


# ── JSON ────────────────────────────────────────────────────────────────────────────────────────


def comparison_json(found: Comparison) -> dict[str, Any]:
    """Return all numbers of a comparison as JSON, by layer and part; a number that does not exist is null.

    `total` of a layer are its matrices, `vector` its norms and biases.
    """
    views = (*VIEWS, *((part, (part,)) for part in PARTS if part not in ("attention", "mlp")))
    return {
        "first": found.first,
        "second": found.second,
        "base": found.base,
        "mean_cosine": {_key(view): found.mean_cosine(parts) for view, parts in VIEWS},
        "layers": {
            shown_layer(layer): {
                _key(view): _numbers(found, layer, parts)
                for view, parts in views
                if found.of(layer, parts) is not None
            }
            for layer in found.whole_layers()
        },
        "below": {
            "cosine": LOW_COSINE,
            "layers": [shown_layer(layer) for layer in found.low_layers()],
        },
        "left_out": [*found.left_out],
        "notes": [*found.notes],
    }


def _key(view: str) -> str:
    return view.lower()


def _numbers(found: Comparison, layer: str, parts: tuple[Part, ...]) -> dict[str, Any]:
    weights, changes = found.of(layer, parts), found.changes_of(layer, parts)
    assert weights is not None
    numbers: dict[str, Any] = {
        "elements": int(weights.elements),
        "cosine": weights.cosine,
        "distance": _finite(weights.distance),
        "norm_first": weights.norms[0],
        "norm_second": weights.norms[1],
        "norm_change": weights.norms[2],
        "sign_conflicts": weights.sign_conflicts,
    }
    if changes is not None:
        numbers["changes"] = {
            "cosine": changes.cosine,
            "norm_first": changes.norms[0],
            "norm_second": changes.norms[1],
            "sign_conflicts": changes.sign_conflicts,
        }
    return numbers


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# ── figures ─────────────────────────────────────────────────────────────────────────────────────


def figures_of(found: Comparison) -> list[dict[str, Any]]:
    """Return charts over the layers as data, in the form of an artifact's `figures`."""
    a, b = found.first, found.second
    figures = [
        _figure(
            found,
            f"Cosine of {a} and {b}",
            "Of all matrices of a layer, of its attention and of its MLP; E are the embeddings. Below "
            f"{LOW_COSINE} an average is rarely of use before it is trained.",
            "cosine",
            {view: _values(found, parts, lambda one: one.cosine) for view, parts in VIEWS},
        ),
        _figure(
            found,
            f"Distance of {b} from {a}",
            f"‖B - A‖ / ‖A‖, the Frobenius norm, in percent; A is {a} and B is {b}.",
            "distance, % of the norm",
            {v: _values(found, parts, lambda one: 100 * one.distance) for v, parts in VIEWS},
        ),
        _figure(
            found,
            "Weights of opposite sign",
            f"Share of the weights that are above zero in one of {a} and {b} and below it in the other.",
            "opposite signs, %",
            {v: _values(found, ps, lambda one: 100 * one.sign_conflicts) for v, ps in VIEWS},
        ),
    ]
    changes = _change_figures(found) if found.base is not None else ()
    return [figure for figure in (*figures, *changes) if figure["lines"]["series"]]


def _change_figures(found: Comparison) -> Iterator[dict[str, Any]]:
    numbers: tuple[tuple[str, str, Number], ...] = (
        ("Cosine of the changes", "cosine", lambda one: one.cosine),
        (
            "Changes of opposite sign",
            "opposite signs, %",
            lambda one: 100 * one.sign_conflicts,
        ),
    )
    for title, y, number in numbers:
        caption = f"Of the changes from {found.base} to {found.first} and to {found.second}."
        series = {view: _values(found, parts, number, changes=True) for view, parts in VIEWS}
        yield _figure(found, title, caption, y, series)
    norms = {
        found.first: _values(found, MATRICES, lambda one: one.norms[0], changes=True),
        found.second: _values(found, MATRICES, lambda one: one.norms[1], changes=True),
    }
    caption = f"‖W - W₀‖, the Frobenius norm of a layer's change from {found.base}."
    yield _figure(found, "Norms of the changes", caption, "norm", norms)


def _values(
    found: Comparison, parts: tuple[Part, ...], number: Number, *, changes: bool = False
) -> list[float | None]:
    look = found.changes_of if changes else found.of
    sums = [look(layer, parts) for layer in found.layers]
    known = [None if one is None else number(one) for one in sums]
    return [None if value is None else _finite(value) for value in known]


def _figure(
    found: Comparison, title: str, caption: str, y: str, series: dict[str, list[float | None]]
) -> dict[str, Any]:
    lines = {name: values for name, values in series.items() if any(v is not None for v in values)}
    labels = [shown_layer(layer) for layer in found.layers]
    return {
        "title": title,
        "caption": caption,
        "lines": {"x": "layer", "y": y, "labels": labels, "series": lines},
    }
