"""The verb `refresh`: the order in which to embed the documents of a translated index again."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import DataError
from emberge.files import replace_file, writing
from emberge.numerics import rank_discounts, top_k, unit_rows

from emberge_index.vectors import require_new

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from emberge_index.translation import SpaceOf, Translation
    from emberge_index.vectors import Codec


SHOWN = 10


def refresh(options: argparse.Namespace, _plugins: object) -> int:
    """Write the order in which to embed documents again, and show its first rows."""
    import numpy as np

    require_new(options.out, ".npy")
    rows, names = order_of(
        options.vectors,
        options.by,
        queries=options.queries,
        column=options.column,
        any_model=options.any_model,
        ranges=options.ranges,
        bits=options.bits,
    )
    with writing(options.out, "the order"), replace_file(options.out) as side:
        require_new(options.out, ".npy")  # another process may have been quicker
        with side.open("wb") as file:
            np.save(file, rows)
    print(f"embed first: {', '.join(names)}{', …' if len(rows) > len(names) else ''}")
    print(f"written: {options.out}, {len(rows):,} row numbers")
    return 0


def order_of(
    vectors: Path,
    by: Path,
    *,
    queries: Path | None = None,
    column: str | None = None,
    any_model: bool = False,
    ranges: Path | None = None,
    bits: Path | None = None,
) -> tuple[NDArray[np.int64], list[str]]:
    """Return (row numbers of a file of old vectors, row names), the most urgent to embed again first.

    The numbers are places from 0, of an index of inverted lists its ids.

    `queries` is a file of the new model's vectors of logged queries: the documents that they hit most come
    first. Without `queries` the documents least similar to the texts of the fit come first. Zero vectors,
    which empty documents have, come last. `any_model` accepts vectors that look like another model's.

    `ranges` is the file with the ranges of stored int8 codes, and `bits` a file of bits that were made of the
    vectors, if the index has these. Hits are those among the mapped vectors in the same form.

    Raises:
        DataError: if the verb `translate` would refuse the vectors, the translation is of queries, or the
            bits are not the signs of the vectors.
    """
    import numpy as np

    from emberge_index.vectors import (
        Mapper,
        block_rows,
        build_codec,
        map_blocks,
        open_fitting,
        require_signs,
    )

    plan, translation = open_fitting(vectors, by, column, any_model=any_model, ranges=ranges)
    if translation.header.side != "documents":
        raise DataError(
            f"{by}: translates {translation.header.side}, and documents are refreshed; fit a translation "
            "with texts: documents"
        )
    if bits is not None:
        require_signs(bits, plan)
        plan = replace(plan, kind="binary")
    mapper = Mapper(translation, plan.rows.dtype)
    size = block_rows(plan.rows.dimension, mapper.dimension)
    hits = None
    if queries is not None:
        log = _read_queries(queries, translation.header.target)
        hits = Hits(log, build_codec(plan, translation))
    strangeness_blocks = [np.zeros(0)]
    for first, originals, mapped in map_blocks(plan, mapper, plan.rows.blocks(0, size), size):
        strangeness_blocks.append(strangeness_of_each(translation, [originals]))
        if hits is not None:
            hits.add(mapped.vectors, first)
    strangeness = np.concatenate(strangeness_blocks)
    weights = np.zeros(len(strangeness)) if hits is None else hits.weights(len(strangeness))
    rows = by_hits(weights, strangeness)
    return plan.rows.numbers_of(rows), [plan.rows.name_of(int(row)) for row in rows[:SHOWN]]


def _read_queries(path: Path, new: SpaceOf) -> NDArray[Any]:
    """Return the vectors of logged queries, after checking that they are the new model's."""
    from emberge_index.vectors import read_vectors, require_space

    vectors = read_vectors(path)
    require_space(vectors.plan, new, "queries")
    return vectors.rows


# Hits of a query that count.
DEPTH = 20
# Queries that are compared with a block in one product.
QUERIES = 256


class Hits:
    """Nearest DEPTH documents of each query, updated block by block.

    With a `codec` documents are compared as they are stored in its form, with queries as they are.
    """

    def __init__(self, queries: NDArray[Any], codec: Codec | None = None) -> None:
        import numpy as np

        self._codec = codec
        self._read_queries = unit_rows(np.asarray(queries, np.float32))
        self._scores = np.full((len(queries), DEPTH), -np.inf, np.float32)
        self._rows = np.full((len(queries), DEPTH), -1, np.int64)

    def add(self, documents: NDArray[Any], first: int) -> None:
        """Update the best documents with a block of documents, whose rows are counted from `first`."""
        import numpy as np

        unit_documents = unit_rows(self._round_vectors(np.asarray(documents, np.float32)))
        rows = np.arange(first, first + len(unit_documents))
        for start in range(0, len(self._read_queries), QUERIES):
            part = slice(start, start + QUERIES)
            scores = np.hstack([self._scores[part], self._read_queries[part] @ unit_documents.T])
            new_rows = np.broadcast_to(rows, (len(scores), len(rows)))
            candidate_rows = np.hstack([self._rows[part], new_rows])
            best = top_k(scores, DEPTH)
            self._scores[part] = np.take_along_axis(scores, best, 1)
            self._rows[part] = np.take_along_axis(candidate_rows, best, 1)

    def _round_vectors(self, documents: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return documents as they are compared; zero vectors stay zero, which no query hits first."""
        if self._codec is None:
            return documents
        return self._codec.round(documents) * documents.any(axis=1, keepdims=True)

    def weights(self, rows: int) -> NDArray[np.float64]:
        """Return each document's sum of 1 / log2(rank + 1) over the queries that hit it."""
        import numpy as np

        weights_ = np.zeros(rows)
        discounts = np.broadcast_to(rank_discounts(DEPTH), self._rows.shape)
        is_filled = self._rows >= 0
        np.add.at(weights_, self._rows[is_filled], discounts[is_filled])
        return weights_


def by_hits(hits: NDArray[np.float64], strangeness: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return row indices sorted by descending hits, then by descending strangeness."""
    import numpy as np

    return np.lexsort((-strangeness, -hits))


def strangeness_of_each(
    translation: Translation, blocks: Iterable[NDArray[Any]]
) -> NDArray[np.float64]:
    """Return each vector's distance from the vectors of the fit; it grows with the translation's error.

    A zero vector, which an empty document has, gets -1, as there is nothing to embed.
    """
    import numpy as np

    axes = np.asarray(translation.axes, np.float64)
    parts = [np.zeros(0)]
    for block in blocks:
        far = (((block - translation.mean) @ axes) ** 2).sum(1) / translation.usual
        parts.append(np.where(block.any(axis=1), far, -1.0))
    return np.concatenate(parts)
