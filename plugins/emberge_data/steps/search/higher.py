"""Numbers of documents that score higher than a given one, exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emberge_data.steps.search.exact import SearchMemory, full_precision, rounded_down, rounded_up

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from emberge_data.steps.search.exclusions import Lists
    from emberge_data.steps.search.space import Space


def count_higher(
    space: Space,
    queries: NDArray[np.int64],
    documents: NDArray[np.int64],
    among: NDArray[np.int64],
    *,
    spared: Lists | None = None,
    limits: SearchMemory | None = None,
) -> NDArray[np.int64]:
    """Return how many documents of `among` score strictly higher with each query than the one given for it.

    `among` are sorted places without repetitions; the documents in `spared[i]` are not counted for the i-th
    pair. Float32 products decide where the bound on them allows, and exact cosines everywhere else.
    """
    import numpy as np
    import torch

    limits = limits or SearchMemory()
    scores = space.scores(queries, documents)
    highest = rounded_up(scores + space.slack, space.device)
    lowest = rounded_down(scores - space.slack, space.device)
    found = np.zeros(len(queries), dtype=np.int64)
    rows, columns = limits.tile(space.device, len(queries))
    units = space.queries.units(queries)
    kept = torch.empty(
        rows * columns, device=space.device
    )  # fresh pages would cost a fifth of a product
    with full_precision():
        for first in range(0, len(among), columns):
            here = space.documents.units(among[first : first + columns])
            for row in range(0, len(queries), rows):
                part = slice(row, row + rows)
                asked = units[part]
                tile = kept[: len(asked) * len(here)].view(len(asked), len(here))
                torch.mm(asked, here.T, out=tile)
                above = _count(tile > lowest[part, None])
                found[part] += (sure := _count(tile > highest[part, None]))
                close = np.flatnonzero(above > sure)
                near, at = _places(tile, close, lowest[part], highest[part])
                found += _exactly(space, queries, among, scores, near + row, at + first)
    if spared is not None:
        found -= _spared(space, queries, scores, among, spared)
    return found


def _count(mask: Tensor) -> NDArray[np.int64]:
    """Return how many places of each row are true."""
    import numpy as np

    if mask.device.type != "cpu":
        return np.asarray(mask.sum(dim=1).cpu().numpy())
    return np.asarray(np.count_nonzero(mask.numpy(), axis=1))  # ten times as fast as a sum of torch


def _places(
    tile: Tensor, rows: NDArray[np.int64], lowest: Tensor, highest: Tensor
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows and columns of the products in these rows that neither bound decides."""
    import torch

    chosen = torch.from_numpy(rows).to(tile.device)
    some = tile[chosen]
    undecided = (some > lowest[chosen, None]) & ~(some > highest[chosen, None])
    at, columns = undecided.nonzero(as_tuple=True)
    return rows[at.cpu().numpy()], columns.cpu().numpy()


def _exactly(
    space: Space,
    queries: NDArray[np.int64],
    among: NDArray[np.int64],
    scores: NDArray[np.float64],
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return for each query how many of these pairs (row, column of `among`) have a higher exact cosine."""
    import numpy as np

    theirs = space.scores(queries[rows], among[columns])
    return np.bincount(rows[theirs > scores[rows]], minlength=len(queries))


def _spared(
    space: Space,
    queries: NDArray[np.int64],
    scores: NDArray[np.float64],
    among: NDArray[np.int64],
    spared: Lists,
) -> NDArray[np.int64]:
    import numpy as np

    rows, places = spared.pairs(np.arange(len(queries)))
    at = np.searchsorted(among, places)
    counted = among[np.minimum(at, len(among) - 1)] == places
    return _exactly(space, queries, among, scores, rows[counted], at[counted])
