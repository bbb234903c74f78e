"""The verb `refresh`: the order in which documents of a translated index are best embedded anew."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import DataError, RecipeError
from emberge.engine import replace_file

from emberge_index.vectors.translate_verb import plan_vectors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["order_of", "refresh"]

SHOWN = 10


def refresh(options: argparse.Namespace, _plugins: object) -> int:
    """Write the order and show its first rows."""
    import numpy as np

    if options.out.exists() or options.out.suffix != ".npy":
        raise RecipeError(f"{options.out}: name a new file that ends with .npy")
    if not options.out.parent.is_dir():
        raise RecipeError(f"{options.out.parent}: there is no such folder; create it first")
    rows, names = order_of(
        options.vectors, options.by, queries=options.queries, column=options.column
    )
    with replace_file(options.out) as side, side.open("wb") as file:
        np.save(file, rows)
    print(f"embed first: {', '.join(names)}{', …' if len(rows) > len(names) else ''}")
    print(f"written: {options.out}, {len(rows):,} row numbers from 0")
    return 0


def order_of(
    vectors: Path, by: Path, *, queries: Path | None = None, column: str | None = None
) -> tuple[NDArray[np.int64], list[str]]:
    """Return the rows of a file of old vectors, those to embed anew first, and the first ones' names.

    `queries` is an npy file of the new model's vectors of logged queries: the documents that they hit most
    come first. Without it, those come first that are least like the texts of the fit.

    Raises:
        DataError: for vectors that the translation does not fit.
    """
    import numpy as np

    from emberge_index.refreshing.order import Hits, by_hits, strangeness_of_each
    from emberge_index.translation.translation_file import read_translation
    from emberge_index.vectors.checks import require_fitting
    from emberge_index.vectors.mapper import Mapper
    from emberge_index.vectors.rewrite import block_rows

    translation = read_translation(by)
    plan = plan_vectors(vectors, translation, column)
    require_fitting(plan, translation, any_model=True)
    mapper = Mapper(translation, plan.rows.dtype)
    size = block_rows(plan.rows.dimension, mapper.dimension)
    log = _queries(queries, mapper.dimension) if queries is not None else None
    hits = Hits(log) if log is not None else None
    strange, first = [], 0
    for block in plan.rows.blocks(0, size):
        strange.append(strangeness_of_each(translation, [block]))
        if hits is not None:
            hits.add(mapper(block)[0], first)
        first += len(block)
    strangeness = np.concatenate([np.zeros(0), *strange])
    weights = np.zeros(first) if hits is None else hits.weights(first)
    rows = by_hits(weights, strangeness)
    return rows, [plan.rows.name_of(int(row)) for row in rows[:SHOWN]]


def _queries(path: Path, dimension: int) -> NDArray[Any]:
    import numpy as np

    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: is no npy file of query vectors ({error})") from error
    if found.ndim != 2 or found.shape[1] != dimension or not np.isfinite(found).all():
        raise DataError(
            f"{path}: has an array {found.shape}, not finite vectors of {dimension:,} numbers; embed the "
            "logged queries by the new model"
        )
    return np.asarray(found, np.float32)
