"""Arithmetic of similarity: unit vectors, and sums over score tables computed block by block.

Importing it loads no torch, so a plugin may import from it at its top.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# Entries of a table of scores that are in memory at once: 16 MiB of float32, no slower than more (measured).
MOST_CELLS = 2**22
# A vector that is not longer than this has no direction.
LEAST_LENGTH = 1e-12


def scale_to_unit(vectors: Tensor) -> Tensor:
    """Return vectors [..., d] scaled to length one; a zero vector stays zero and gets no gradient.

    (A division by the length plus a small constant would give a zero vector a gradient of about 1e12.)
    """
    import torch

    length: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors * ((length > LEAST_LENGTH) / length.clamp(min=LEAST_LENGTH))


def join_rows(tables: Sequence[Tensor]) -> Tensor:
    """Return tables of embeddings [n, …, d] as one; inner dimensions are filled up with zeros."""
    import torch
    from torch.nn.functional import pad

    most = [max(sizes) for sizes in zip(*(table.shape[1:-1] for table in tables), strict=True)]

    def fill_up(table: Tensor) -> Tensor:
        missing = [size - present for size, present in zip(most, table.shape[1:-1], strict=True)]
        if not any(missing):
            return table
        return pad(table, [0, 0, *(n for size in reversed(missing) for n in (0, size))])

    return torch.cat([fill_up(table) for table in tables])


def find_lowest_score(like: Tensor) -> float:
    """Return the finite score used in place of minus infinity, so that gradients stay finite."""
    import torch

    return float(torch.finfo(like.dtype).min / 4)


def apply_blockwise(rows: int, columns: int, function: Callable[[slice], Tensor]) -> Tensor:
    """Apply `function` to every block of rows and return the results, joined along the first dimension.

    `function(block)` may compute tables [rows of the block, columns] and returns a few numbers for each row.
    If a table of all rows would have more than MOST_CELLS entries, its blocks are computed one after another,
    and again in the backward pass: memory then does not grow with the number of rows, but everything is
    computed twice.
    """
    if rows * columns <= MOST_CELLS:
        return function(slice(0, rows))
    import torch
    from torch.utils.checkpoint import checkpoint

    size = max(1, MOST_CELLS // max(1, columns))
    blocks = (slice(start, min(start + size, rows)) for start in range(0, rows, size))
    return torch.cat(
        [
            checkpoint(function, block, use_reentrant=False, preserve_rng_state=False)
            for block in blocks
        ]
    )


def log_sum_products(
    left: Tensor, right: Tensor, excluded: Callable[[slice], Tensor | None]
) -> Tensor:
    """Return log Σ_j e^<left_i, right_j> for each row i, [k], given left [k, d] and right [m, d].

    `excluded(block)` is a mask [rows of the block, m] of omitted entries, or None. A row in which all entries
    are omitted gives `find_lowest_score` and a gradient of zero.
    """
    if not len(right):
        return left.sum(1) * 0 + find_lowest_score(left)

    def sum_rows(block: slice) -> Tensor:
        scores = left[block] @ right.T
        is_excluded = excluded(block)
        if is_excluded is not None:
            scores.masked_fill_(is_excluded, find_lowest_score(scores))
        return scores.logsumexp(1)

    return apply_blockwise(len(left), len(right), sum_rows)
