"""Nearest documents of queries, exactly: by cosine, then the earlier document first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge_data.steps.search.exact import SearchMemory, full_precision, round_up

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from emberge_data.steps.search.exclusions import Exclusions
    from emberge_data.steps.search.space import Space


# More candidates than asked for: the last of them shows that none beyond can be among the nearest.
SPARE = 8
# Queries of which the first candidates did not show it are searched again for so many times as many.
GROWTH = 4
# A candidate takes a float32 score and a place, twice while those of a block are added.
CANDIDATE = 2 * (4 + 8)


@dataclass(frozen=True, slots=True, eq=False)
class NearestDocuments:
    """Documents found for n queries: indices [n, k], nearest first, and scores, padded with -1 and -inf."""

    places: NDArray[np.int64]
    scores: NDArray[np.float64]


def nearest(
    spaces: Sequence[Space],
    queries: NDArray[np.int64],
    count: int,
    *,
    ceilings: NDArray[np.float64] | None = None,
    excluded: Exclusions | None = None,
    limits: SearchMemory | None = None,
) -> list[NearestDocuments]:
    """Return the `count` nearest allowed documents of these queries for each embedding space.

    A document is allowed if `excluded` does not contain it and if, in every space, its score is at most the
    query's ceiling (`ceilings` [spaces, queries]). Spaces have the same queries and documents in the same
    order.

    Float32 products find candidates and exact cosines put them in order. A query is done when, by the bound
    on the products' error, no other document can be as near as its `count`-th; until then the search is
    repeated with more candidates. So the result depends only on the stored vectors.
    """
    import numpy as np

    limits = limits or SearchMemory()
    shape = (len(queries), count)
    results = [NearestDocuments(np.full(shape, -1), np.full(shape, -np.inf)) for _ in spaces]
    todo, size = np.arange(len(queries)), count + SPARE
    while len(todo):
        unproven_parts = []
        bytes_of_query = sum(CANDIDATE * size + 4 * space.queries.dimension for space in spaces)
        rows = max(1, limits.memory // 4 // bytes_of_query)
        for first in range(0, len(todo), rows):
            part = todo[first : first + rows]
            part_ceilings = None if ceilings is None else ceilings[:, part]
            search = _Search(spaces, queries[part], size, part_ceilings, excluded, limits)
            is_done = np.ones(len(part), dtype=bool)
            for number, result in enumerate(results):
                places, scores = search.in_order(number)
                is_done &= search.are_proven(number, scores, count)
                width = min(count, places.shape[1])
                result.places[part, :width] = places[:, :width]
                result.scores[part, :width] = scores[:, :width]
            unproven_parts.append(part[~is_done])
        todo, size = np.concatenate(unproven_parts), size * GROWTH
    return results


class _Search:
    """Search for the allowed documents with the highest float32 products."""

    def __init__(
        self,
        spaces: Sequence[Space],
        queries: NDArray[np.int64],
        size: int,
        ceilings: NDArray[np.float64] | None,
        excluded: Exclusions | None,
        limits: SearchMemory,
    ) -> None:
        self.spaces, self.queries, self.ceilings = spaces, queries, ceilings
        self.size = min(size, len(spaces[0].documents))
        self._highest = self._round_ceilings()
        self._best = [self._make_empty_candidates(space) for space in spaces]
        with full_precision():
            self._look_at_all(excluded, limits)

    def _round_ceilings(self) -> list[Tensor] | None:
        """Return the upper limits of an allowed document's products, per space."""
        if self.ceilings is None:
            return None
        return [
            round_up(ceiling + space.slack, space.device)
            for space, ceiling in zip(self.spaces, self.ceilings, strict=True)
        ]

    def _make_empty_candidates(self, space: Space) -> tuple[Tensor, Tensor]:
        import torch

        shape = (len(self.queries), self.size)
        return (
            torch.full(shape, -torch.inf, device=space.device),
            torch.full(shape, -1, dtype=torch.int64, device=space.device),
        )

    def _look_at_all(self, excluded: Exclusions | None, limits: SearchMemory) -> None:
        units = [space.queries.units(self.queries) for space in self.spaces]
        rows, columns = limits.tile(self.spaces[0].device, len(self.queries), len(self.spaces))
        documents = len(self.spaces[0].documents)
        for first in range(0, documents, columns):
            piece = slice(first, min(first + columns, documents))
            document_vectors = [space.documents.units(piece) for space in self.spaces]
            for row in range(0, len(self.queries), rows):
                part = slice(row, row + rows)
                tiles = [u[part] @ h.T for u, h in zip(units, document_vectors, strict=True)]
                self._exclude_documents(tiles, part, first, excluded)
                for number, tile in enumerate(tiles):
                    self._keep_best(number, tile, part, first)

    def _exclude_documents(
        self, tiles: Sequence[Tensor], part: slice, first: int, excluded: Exclusions | None
    ) -> None:
        """Set the scores of documents that are not allowed to -inf."""
        import torch

        if self._highest is not None:
            highest = [limit[part] for limit in self._highest]
            # Few queries have a document above their ceiling in any one block.
            exceeds_limit = [t.amax(dim=1) > limit for t, limit in zip(tiles, highest, strict=True)]
            rows = torch.stack(exceeds_limit).any(dim=0).nonzero()[:, 0]
            parts = [tile[rows] for tile in tiles]
            is_above = [t > limit[rows, None] for t, limit in zip(parts, highest, strict=True)]
            forbidden = torch.stack(is_above).any(dim=0)
            for tile, products in zip(tiles, parts, strict=True):
                tile[rows] = products.masked_fill_(forbidden, -torch.inf)
        if excluded is not None:
            for tile in tiles:
                excluded.fill(tile, self.queries[part], first, -torch.inf)

    def _keep_best(self, number: int, tile: Tensor, part: slice, first: int) -> None:
        """Merge the best documents of a tile into the candidates of its queries."""
        import torch

        best_products, places = self._best[number]
        best, at = tile.topk(min(self.size, tile.shape[1]), dim=1, sorted=False)
        best, order = torch.cat([best_products[part], best], dim=1).topk(self.size, dim=1)
        best_products[part] = best
        places[part] = torch.cat([places[part], at + first], dim=1).gather(1, order)

    def in_order(self, number: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the allowed candidates of a space [n, k], nearest first, padded with -1 and -inf."""
        import numpy as np

        products, documents = (part.cpu().numpy() for part in self._best[number])
        places = np.where(np.isneginf(products), 0, documents)
        scores = self.spaces[number].scores(self.queries, places)
        allowed = ~np.isneginf(products)
        if self.ceilings is not None:
            for other, (space, ceiling) in enumerate(zip(self.spaces, self.ceilings, strict=True)):
                other_scores = scores if other == number else space.scores(self.queries, places)
                allowed &= other_scores <= ceiling[:, None]
        scores = np.where(allowed, scores, -np.inf)
        places = np.where(allowed, places, -1)
        # Of equal scores the earlier document comes first; what is not allowed is last by its score.
        order = np.lexsort((places, -scores), axis=1)
        return np.take_along_axis(places, order, 1), np.take_along_axis(scores, order, 1)

    def are_proven(self, number: int, scores: NDArray[np.float64], count: int) -> NDArray[np.bool_]:
        """Return whether each query's candidates provably contain its `count` nearest documents."""
        import numpy as np

        lowest = self._best[number][0][:, -1].cpu().numpy().astype(np.float64)
        has_all = np.isneginf(lowest) | (self.size == len(self.spaces[0].documents))
        if scores.shape[1] < count:
            return np.asarray(has_all)
        return np.asarray(has_all | (lowest + self.spaces[number].slack < scores[:, count - 1]))
