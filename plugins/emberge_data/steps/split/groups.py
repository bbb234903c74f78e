"""Groups of rows that must stay together, and the choice of some of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from emberge import shuffled, stable_seed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]


def group_rows(count: int, rows: Numbers, things: Numbers) -> Numbers:
    """Return the number of each row's group [count]: rows with a thing in common are in one group.

    `rows` and `things` are pairs, a row and a thing that it has. Groups are numbered by their first rows.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    size = count + (int(things.max()) + 1 if len(things) else 0)
    edges = coo_array((np.ones(len(rows), np.int8), (rows, things + count)), shape=(size, size))
    _, found = connected_components(edges, directed=False)
    _, first, groups = np.unique(found[:count], return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[groups]


def choose_rows(
    groups: Numbers, sets: Numbers, wanted: Sequence[int], seed: int
) -> NDArray[np.bool_]:
    """Return flags of rows in a random choice of whole groups, with at most `wanted` rows of each set.

    Groups come in random order, and one that is too large for what is still wanted of any of its sets is
    passed over.
    """
    order = np.argsort(groups, kind="stable")
    count = int(groups.max()) + 1
    ends = np.cumsum(np.bincount(groups, minlength=count))
    left = np.array(wanted)
    chosen = np.zeros(len(groups), dtype=bool)
    for group in shuffled(count, stable_seed("split", seed)).tolist():
        rows = order[ends[group - 1] if group else 0 : ends[group]]
        needed = np.bincount(sets[rows], minlength=len(left))
        if (needed <= left).all():
            left -= needed
            chosen[rows] = True
            if not left.any():
                break
    return chosen
