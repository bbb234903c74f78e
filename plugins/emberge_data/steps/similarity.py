"""Cosines of a set's queries and documents, compared in tiles on a device.

`semantic_search` of sentence-transformers knows neither documents that a query must not get nor a limit of
their scores, so the tiles of products are searched here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from emberge_data.steps.compared_set import NO_TEXT

if TYPE_CHECKING:
    from emberge_encoder import Vectors
    from torch import Tensor

    from emberge_data.steps.compared_set import Numbers, TextPairs

Scores: TypeAlias = NDArray[np.float32]
Excluded: TypeAlias = "Callable[[slice, slice], tuple[Numbers, Numbers]]"
"""Function that returns rows and columns of a tile: documents that queries must not get."""
Tiles: TypeAlias = "Iterator[tuple[slice, slice, Tensor]]"

# Queries whose vectors are in memory at once; and queries and documents of a tile of 64 MB.
_QUERIES_AT_ONCE, _TILE_ROWS, _TILE_COLUMNS = 16384, 2048, 8192


class VectorSimilarity:
    """Cosines of stored vectors, compared on a device."""

    def __init__(self, queries: Vectors, documents: Vectors, device: str) -> None:
        self._queries, self._documents, self._device = queries, documents, device

    def score(self, queries: Numbers, documents: Numbers) -> Scores:
        """Return the cosines of pairs, float32 [n], by their numbers."""
        scores = np.empty(len(queries), np.float32)
        for first in range(0, len(queries), _TILE_ROWS):
            part = slice(first, first + _TILE_ROWS)
            products = self._scale_rows(self._queries, queries[part]) * self._scale_rows(
                self._documents, documents[part]
            )
            scores[part] = products.sum(dim=1).cpu().numpy()
        return scores

    def compute_tiles(
        self, queries: Numbers | None = None, documents: Numbers | None = None
    ) -> Tiles:
        """Yield the cosines of these queries and documents, all by default, with the places of each tile."""
        queries = np.arange(len(self._queries)) if queries is None else queries
        documents = np.arange(len(self._documents)) if documents is None else documents
        for start in range(0, len(queries), _QUERIES_AT_ONCE):
            group = self._scale_rows(self._queries, queries[start : start + _QUERIES_AT_ONCE])
            for first in range(0, len(documents), _TILE_COLUMNS):
                columns = slice(first, min(first + _TILE_COLUMNS, len(documents)))
                block = self._scale_rows(self._documents, documents[columns])
                for row in range(0, len(group), _TILE_ROWS):
                    part = group[row : row + _TILE_ROWS]
                    yield slice(start + row, start + row + len(part)), columns, part @ block.T

    def _scale_rows(self, vectors: Vectors, numbers: Numbers) -> Tensor:
        import torch

        rows = torch.from_numpy(vectors[numbers]).to(self._device)
        return torch.nn.functional.normalize(rows)


def find_best(
    similarity: VectorSimilarity,
    excluded: Excluded,
    *,
    size: tuple[int, int],
    count: int,
    ceilings: Scores | None = None,
    show_progress: Callable[[int, int], None],
) -> tuple[Numbers, Scores]:
    """Return numbers and scores [queries, count] of each query's best documents, best first.

    Documents that are excluded or above a query's ceiling are left out; a place without a document has the
    number NO_TEXT and the score -inf. `size` is the number of queries and of documents.
    """
    import torch

    scores = torch.full((size[0], count), -torch.inf)
    documents = torch.full((size[0], count), NO_TEXT)
    done = 0
    for rows, columns, tile in similarity.compute_tiles():
        tile[excluded(rows, columns)] = -torch.inf
        if ceilings is not None:
            tile.masked_fill_(
                tile > torch.from_numpy(ceilings[rows, None]).to(tile.device), -torch.inf
            )
        best, at = (part.cpu() for part in tile.topk(min(count, tile.shape[1]), dim=1))
        joined = torch.cat([scores[rows], best], dim=1)
        numbers = torch.cat([documents[rows], at + columns.start], dim=1)
        scores[rows], order = joined.topk(count, dim=1)
        documents[rows] = numbers.gather(1, order)
        done += tile.numel()
        show_progress(done // size[1], size[0])
    documents[scores == -torch.inf] = NO_TEXT
    # Of equal scores the earlier document comes first.
    order = torch.from_numpy(np.lexsort((documents.numpy(), -scores.numpy()), axis=1))
    return documents.gather(1, order).numpy(), scores.gather(1, order).numpy()


def find_lowest_scores(pairs: TextPairs, scores: Scores, queries: int) -> Scores:
    """Return the lowest score of each query's pairs, float32 [queries]."""
    lowest = np.full(queries, np.inf, np.float32)
    np.minimum.at(lowest, pairs.queries, scores)
    return lowest


def find_thresholds(positives: Scores, margin: float) -> Scores:
    """Return the highest score that a negative of these positives may have: s - (1 - margin) |s|.

    s is the lowest score of the positives. If s is positive, the threshold is `margin` times s (NV-Retriever,
    arXiv:2407.15831). If s is negative, that product would be above s; so the threshold is the same distance
    below s.
    """
    return positives - np.float32(1 - margin) * abs(positives)


def describe_spread(values: NDArray[np.floating]) -> str:
    """Return the lowest, median and highest of the numbers as text."""
    if not len(values):
        return "none"
    low, middle, high = np.quantile(values, [0, 0.5, 1], method="nearest")
    return f"{low:.4g} to {high:.4g}, median {middle:.4g}"
