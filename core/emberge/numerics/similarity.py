"""What losses are made of: directions of embeddings, and large tables of scores that are never held whole.

Importing it loads no torch, so a plugin may import from it at its top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["blockwise", "log_sum_products", "lowest_score", "unit_vectors"]

# Entries of a table of scores that are held at once: 16 MiB of float32, measured to be no slower than more.
CELLS = 2**22
# A vector no longer than this has no direction.
NOTHING = 1e-12


def unit_vectors(vectors: Tensor) -> Tensor:
    """Vectors [..., d] at length one; a zero vector stays zero and gets no gradient.

    (A division by a small constant instead would give it one of a million millions.)
    """
    import torch

    length: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors * ((length > NOTHING) / length.clamp(min=NOTHING))


def lowest_score(like: Tensor) -> float:
    """A score that stands for minus infinity: a sum of nothing else keeps finite gradients."""
    import torch

    return float(torch.finfo(like.dtype).min / 4)


def blockwise(rows: int, columns: int, function: Callable[[slice], Tensor]) -> Tensor:
    """`function` of every block of rows, results joined along the first dimension.

    `function(block)` may make tables [rows of the block, columns] and returns something small for each row.
    Where a table of all rows would have more than CELLS entries, blocks of it are made one after another and
    made again for the backward pass: memory then does not grow with the rows, for doing it twice.
    """
    if rows * columns <= CELLS:
        return function(slice(0, rows))
    import torch
    from torch.utils.checkpoint import checkpoint

    return torch.cat(
        [
            checkpoint(function, block, use_reentrant=False, preserve_rng_state=False)
            for block in _blocks(rows, columns)
        ]
    )


def _blocks(rows: int, columns: int) -> Iterator[slice]:
    size = max(1, CELLS // max(1, columns))
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def log_sum_products(
    left: Tensor, right: Tensor, barred: Callable[[slice], Tensor | None]
) -> Tensor:
    """Give log sum_j e^<left_i, right_j> for each i [k], of left [k, d] and right [m, d].

    `barred(block)` says which entries [rows of the block, m] of the table take no part; a row without any
    gives `lowest_score` and a gradient of zero. A table of more than CELLS entries is made in blocks, and
    again in the backward pass: beside the vectors' gradients that takes the memory of one block, and one
    product more than the three of a table that is kept.
    """
    from emberge.training.products import LogSumProducts, log_sums

    if not len(right):
        return left.sum(1) * 0 + lowest_score(left)
    if len(left) * len(right) <= CELLS:
        return log_sums(left, right, barred, slice(0, len(left)))
    blocks = tuple(_blocks(len(left), len(right)))
    return LogSumProducts.apply(left, right, barred, blocks)  # type: ignore[no-any-return, no-untyped-call]
