"""faiss indexes of inverted lists (IVF) over whole vectors, which are built again from mapped vectors.

The centres of the lists are of the old space, so vectors that are mapped in place would be looked for in
wrong lists. The new index learns its centres from the mapped vectors. It has as many lists, and the metric,
the ids and the kind of search among centres that the old one had. faiss holds the index in memory, as a
server of it does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
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

# Most links of a centre in a graph; faiss reads any number, and a build with it takes that much memory.
_MOST_LINKS = 1024


@dataclass(frozen=True)
class InvertedRows:
    """Vectors of an IVF index, list by list; `outer` is the file's index, which may wrap the IVF index."""

    path: Path
    rows: int
    dimension: int
    dtype: Any
    outer: Any = field(repr=False, compare=False)

    @cached_property
    def inner(self) -> Any:
        """IVF index itself."""
        return find_inner(self.outer)

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        import numpy as np

        lists = self.inner.invlists
        return np.cumsum([lists.list_size(number) for number in range(self.inner.nlist)])

    @cached_property
    def inner_ids(self) -> NDArray[np.int64]:
        """Id of each vector in the IVF index."""
        import numpy as np

        faiss = load_faiss()

        lists, parts = self.inner.invlists, [np.zeros(0, np.int64)]
        for number in range(self.inner.nlist):
            size = lists.list_size(number)
            if size:
                parts.append(np.array(faiss.rev_swig_ptr(lists.get_ids(number), size)))
        return np.concatenate(parts)

    def numbers_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids of rows, by which a search answers."""
        return translate_ids(self.outer, self.inner_ids[rows])

    def name_of(self, row: int) -> str:
        import numpy as np

        return f"id {self.numbers_of(np.array([row]))[0]}"

    def blocks(self, first: int, size: int) -> Iterator[NDArray[Any]]:
        for start in range(first, self.rows, size):
            yield self._read_rows(start, min(start + size, self.rows))

    def _read_rows(self, start: int, end: int) -> NDArray[Any]:
        import numpy as np

        faiss = load_faiss()

        parts, lists = [], self.inner.invlists
        number = int(np.searchsorted(self._ends, start, side="right"))
        while start < end:
            size = lists.list_size(number)
            if size:
                codes = faiss.rev_swig_ptr(lists.get_codes(number), size * 4 * self.dimension)
                vectors = codes.view(self.dtype).reshape(size, self.dimension)
                list_start = int(self._ends[number]) - size
                parts.append(vectors[start - list_start : end - list_start])
                start += len(parts[-1])
            number += 1
        return np.concatenate(parts)

    def finish(self, mapped: NDArray[Any], path: Path) -> None:
        """Build the index from mapped vectors, in the order of these rows, and write it.

        Raises:
            OSError: if it cannot be written.
        """
        import numpy as np

        index = self._build_empty(mapped.shape[1])
        whole = wrap_as(self.outer, index)
        vectors = np.ascontiguousarray(mapped)
        index.train(vectors)
        index.add_with_ids(vectors, self.inner_ids)
        index.nprobe = self.inner.nprobe
        index.set_direct_map_type(self.inner.direct_map.type)
        whole.ntotal = index.ntotal
        write_faiss_index(whole, path)

    def _build_empty(self, dimension: int) -> Any:
        faiss = load_faiss()
        old = self.inner
        centres, metric = faiss.downcast_index(old.quantizer), old.metric_type
        if isinstance(centres, faiss.IndexHNSWFlat):
            graph = faiss.IndexHNSWFlat(dimension, centres.hnsw.nb_neighbors(1), metric)
            graph.hnsw.efConstruction = centres.hnsw.efConstruction
            graph.hnsw.efSearch = centres.hnsw.efSearch
            index = faiss.IndexIVFFlat(graph, dimension, old.nlist, metric)
            index.quantizer_trains_alone = 2  # the centres are learnt first, then linked
        else:
            index = faiss.IndexIVFFlat(
                faiss.IndexFlat(dimension, metric), dimension, old.nlist, metric
            )
        index.cp.spherical = metric == faiss.METRIC_INNER_PRODUCT
        index.cp.min_points_per_centroid = 1  # few vectors a list are no fault of this call
        return index


def plan_inverted(path: Path) -> RewritePlan:
    """Return the plan to map an IVF index's vectors and build it again.

    Raises:
        DataError: if the index is damaged, or cannot be built again from its vectors.
        RecipeError: if faiss is not installed.
    """
    import numpy as np

    outer = read_faiss_index(path, "an index of inverted lists")
    inner = find_inner(outer)
    _require_rebuildable(path, outer, inner)
    rows = InvertedRows(path, inner.ntotal, inner.d, np.dtype("<f4"), outer)
    require_width(path, rows.dimension)
    return RewritePlan(path, (rows,), rows, finish=rows.finish)


def _require_rebuildable(path: Path, outer: Any, inner: Any) -> None:
    """Refuse an index of another kind, with lists that contradict its counts, or with too few vectors."""
    faiss = load_faiss()
    if type(inner) is not faiss.IndexIVFFlat:
        raise DataError(
            f"{path}: its inverted lists are nested in ways not known here; {BUILD_AGAIN}"
        )
    _require_known_centres(path, faiss.downcast_index(inner.quantizer))
    lists = inner.invlists
    count = sum(lists.list_size(number) for number in range(lists.nlist))
    is_sound = lists.nlist == inner.nlist and lists.code_size == 4 * inner.d
    if outer is not inner:
        is_sound &= outer.id_map.size() == inner.ntotal
    if not is_sound or count > inner.ntotal:
        raise DataError(
            f"{path}: its lists have {count:,} vectors, not what it claims; {BUILD_AGAIN}"
        )
    if count < inner.ntotal:
        raise DataError(
            f"{path}: its lists have {count:,} vectors of the {inner.ntotal:,} that were added, as lists "
            f"keep none that is not finite; embed those texts again, and {BUILD_AGAIN}"
        )
    if count < inner.nlist:
        raise DataError(
            f"{path}: has {count:,} vectors in {inner.nlist:,} lists, and the centres of lists are learnt "
            f"from at least as many vectors; {BUILD_AGAIN} with fewer lists"
        )
    _require_known_ids(path, outer, inner)


def _require_known_centres(path: Path, centres: Any) -> None:
    """Refuse centres of lists that are neither in a table nor in a graph with a possible number of links."""
    faiss = load_faiss()
    if not isinstance(centres, faiss.IndexFlat | faiss.IndexHNSWFlat):
        kind = type(centres).__name__
        raise DataError(f"{path}: the centres of its lists are in an {kind}; {BUILD_AGAIN}")
    if isinstance(centres, faiss.IndexHNSWFlat):
        links = centres.hnsw.nb_neighbors(1)
        if not 1 <= links <= _MOST_LINKS:
            raise DataError(
                f"{path}: the graph of its centres has {links:,} links each; {BUILD_AGAIN}"
            )


def _require_known_ids(path: Path, outer: Any, inner: Any) -> None:
    """Refuse ids of the lists that are places, in a map of ids or a direct map, and lie outside of it."""
    faiss = load_faiss()
    if outer is inner and inner.direct_map.type != faiss.DirectMap.Array:
        return
    ids = InvertedRows(path, inner.ntotal, inner.d, None, outer).inner_ids
    if ids.size and not 0 <= ids.min() <= ids.max() < inner.ntotal:
        raise DataError(
            f"{path}: its lists have ids from {ids.min():,} to {ids.max():,}, places among "
            f"{inner.ntotal:,} vectors; {BUILD_AGAIN}"
        )
