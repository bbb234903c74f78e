"""What losses are made of: directions of embeddings, and large tables of scores that are never held whole."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

__all__ = ["blockwise", "lowest_score", "unit_vectors"]

# Entries of a table of scores that are held at once: 32 MiB of float32.
CELLS = 2**23
# A vector no longer than this has no direction.
NOTHING = 1e-12


def unit_vectors(vectors: Tensor) -> Tensor:
    """Vectors [..., d] at length one; a zero vector stays zero and gets no gradient.

    (A division by a small constant instead would give it one of a million millions.)
    """
    length: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors * ((length > NOTHING) / length.clamp(min=NOTHING))


def lowest_score(like: Tensor) -> float:
    """A score that stands for minus infinity: a sum of nothing else keeps finite gradients."""
    return float(torch.finfo(like.dtype).min / 4)


def blockwise(rows: int, columns: int, function: Callable[[slice], Tensor]) -> Tensor:
    """`function` of every block of rows, results joined along the first dimension.

    `function(block)` may make tables [rows of the block, columns] and returns something small for each row.
    Where a table of all rows would have more than CELLS entries, blocks of it are made one after another and
    made again for the backward pass: memory then does not grow with the rows, for one more product.
    """
    size = max(1, CELLS // max(1, columns))
    if size >= rows:
        return function(slice(0, rows))
    blocks = [slice(start, min(start + size, rows)) for start in range(0, rows, size)]
    return torch.cat(
        [checkpoint(function, b, use_reentrant=False, preserve_rng_state=False) for b in blocks]
    )
