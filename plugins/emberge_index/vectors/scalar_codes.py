"""faiss indexes of scalar codes (SQ8 and its kind), which are built again from decoded and mapped vectors.

Codes are steps between the least and the greatest number of each place, which are others in the new space.
The new index learns them from the mapped vectors, and has the kind of codes, the metric and the ids of the
old one. What a code has lost stays lost: vectors are those that faiss decodes. faiss holds the index in
memory, as a server of it does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import DataError

from emberge_index.vectors.pieces import RewritePlan, require_width
from emberge_index.vectors.rebuilt_index import (
    BUILD_AGAIN,
    find_inner,
    load_faiss,
    read_faiss_index,
    translate_ids,
    wrap_as,
    write_faiss_index,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Codes fine enough to stand for their vectors; others are coarser, or vectors of whole numbers.
_FINE = ("QT_8bit", "QT_8bit_uniform", "QT_fp16", "QT_bf16")


@dataclass(frozen=True)
class ScalarRows:
    """Decoded vectors of an index of scalar codes; `outer` is the file's index, which may wrap it."""

    path: Path
    rows: int
    dimension: int
    dtype: Any
    outer: Any = field(repr=False, compare=False)

    def numbers_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids of rows, by which a search answers."""
        return translate_ids(self.outer, rows)

    def name_of(self, row: int) -> str:
        import numpy as np

        if find_inner(self.outer) is self.outer:
            return f"{row:,}"
        return f"id {self.numbers_of(np.array([row]))[0]}"

    def blocks(self, first: int, size: int) -> Iterator[NDArray[Any]]:
        inner = find_inner(self.outer)
        for start in range(first, self.rows, size):
            yield inner.reconstruct_n(start, min(size, self.rows - start))

    def finish(self, mapped: NDArray[Any], path: Path) -> None:
        """Build the index from mapped vectors, in the order of these rows, and write it.

        Raises:
            OSError: if it cannot be written.
        """
        import numpy as np

        old = find_inner(self.outer)
        index = load_faiss().IndexScalarQuantizer(mapped.shape[1], old.sq.qtype, old.metric_type)
        index.sq.rangestat, index.sq.rangestat_arg = old.sq.rangestat, old.sq.rangestat_arg
        whole = wrap_as(self.outer, index)
        vectors = np.ascontiguousarray(mapped)
        index.train(vectors)
        index.add(vectors)
        whole.is_trained, whole.ntotal = True, index.ntotal
        write_faiss_index(whole, path)


def plan_scalar(path: Path) -> RewritePlan:
    """Return the plan to decode and map an index's vectors, and build it again.

    Raises:
        DataError: if the index is damaged, empty, or cannot be built again from its vectors.
        RecipeError: if faiss is not installed.
    """
    import numpy as np

    outer = read_faiss_index(path, "an index of scalar codes")
    inner, faiss = find_inner(outer), load_faiss()
    if type(inner) is not faiss.IndexScalarQuantizer:
        raise DataError(f"{path}: its codes are nested in ways not known here; {BUILD_AGAIN}")
    if inner.sq.qtype not in [getattr(faiss.ScalarQuantizer, name) for name in _FINE]:
        raise DataError(
            f"{path}: its codes have fewer than 8 bits, or are whole numbers (8bit_direct), and vectors made "
            f"from them are too coarse to be mapped; {BUILD_AGAIN}"
        )
    if not inner.ntotal:
        raise DataError(f"{path}: has no vectors; {BUILD_AGAIN}")
    is_sound = inner.codes.size() == inner.ntotal * inner.code_size
    if outer is not inner:
        is_sound &= outer.id_map.size() == inner.ntotal
    if not is_sound:
        raise DataError(
            f"{path}: claims {inner.ntotal:,} vectors, and has another number of codes or ids; {BUILD_AGAIN}"
        )
    rows = ScalarRows(path, inner.ntotal, inner.d, np.dtype("<f4"), outer)
    require_width(path, rows.dimension)
    return RewritePlan(path, (rows,), rows, finish=rows.finish)
