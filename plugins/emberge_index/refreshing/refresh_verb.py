"""The verb `refresh`: the order in which documents of a translated index are best embedded anew."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge.files import replace_file, writing

from emberge_index.vectors.rewrite import require_new

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from emberge_index.translation.translation_file import SpaceOf


SHOWN = 10


def refresh(options: argparse.Namespace, _plugins: object) -> int:
    """Write the order and show its first rows."""
    import numpy as np

    require_new(options.out, ".npy")
    rows, names = order_of(
        options.vectors,
        options.by,
        queries=options.queries,
        column=options.column,
        any_model=options.any_model,
    )
    with writing(options.out, "the order"), replace_file(options.out) as side:
        require_new(options.out, ".npy")  # another process may have been quicker
        with side.open("wb") as file:
            np.save(file, rows)
    print(f"embed first: {', '.join(names)}{', …' if len(rows) > len(names) else ''}")
    print(f"written: {options.out}, {len(rows):,} row numbers from 0")
    return 0


def order_of(
    vectors: Path,
    by: Path,
    *,
    queries: Path | None = None,
    column: str | None = None,
    any_model: bool = False,
) -> tuple[NDArray[np.int64], list[str]]:
    """Return the rows of a file of old vectors, those to embed anew first, and the first ones' names.

    `queries` is a file of the new model's vectors of logged queries: the documents that they hit most come
    first. Without it, those come first that are least like the texts of the fit. Vectors of zeros, as of
    empty documents, come last. `any_model` takes vectors that look like another model's.

    Raises:
        DataError: for vectors that the translation does not fit, or that are not finite.
    """
    import numpy as np

    from emberge_index.refreshing.order import Hits, by_hits, strangeness_of_each
    from emberge_index.translation.translation_file import read_translation
    from emberge_index.vectors.checks import require_fitting
    from emberge_index.vectors.mapper import Mapper
    from emberge_index.vectors.open_vectors import plan_vectors
    from emberge_index.vectors.pieces import block_rows, require_finite

    translation = read_translation(by)
    target = translation.header.target
    plan = plan_vectors(vectors, column, dimension=target.dimension)
    require_fitting(plan, translation, any_model=any_model)
    mapper = Mapper(translation, plan.rows.dtype)
    size = block_rows(plan.rows.dimension, mapper.dimension)
    log = _queries(queries, target) if queries is not None else None
    require_finite(plan.path, plan.rows, size)
    hits = Hits(log) if log is not None else None
    strange, first = [], 0
    for block in plan.rows.blocks(0, size):
        strange.append(strangeness_of_each(translation, [block]))
        if hits is not None:
            hits.add(mapper(block).vectors, first)
        first += len(block)
    strangeness = np.concatenate([np.zeros(0), *strange])
    weights = np.zeros(first) if hits is None else hits.weights(first)
    rows = by_hits(weights, strangeness)
    return rows, [plan.rows.name_of(int(row)) for row in rows[:SHOWN]]


def _queries(path: Path, new: SpaceOf) -> NDArray[Any]:
    """Return the vectors of logged queries, which must be the new model's."""
    from emberge_index.vectors.checks import require_space
    from emberge_index.vectors.open_vectors import read_vectors

    found = read_vectors(path)
    require_space(found.plan, new, "queries")
    return found.rows
