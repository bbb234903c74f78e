"""Cosines that are equal on every machine, and bounds on the cosines of a matrix product.

A product of two float32 numbers is exact in float64. A sum that repeatedly adds one half of a vector to the
other half always adds elements in the same order. So the cosine of two stored vectors is a function of their
bits alone: it depends on no library, device or block size, and equal vectors have equal cosines.

A matrix product in float32 is many times faster. It finds the candidates, among which exact cosines decide.
`slack` bounds the error of the product. With u = 2^-24: both vectors are scaled to length 1 and rounded,
which moves their product by at most 2u + u² (Cauchy and Schwarz), and a sum of d products in any order, fused
or not, is off by at most γ(d) = d u / (1 - d u) times the product of the lengths (Higham, Accuracy and
Stability of Numerical Algorithms, 2002, section 3.1). γ(d + 4) is more than the sum of both errors and the
rounding of the exact cosine itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import EmbergeError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


UNIT = 2.0**-24
# Bytes of one block of products: larger ones are no faster.
CPU_TILE = 64 << 20
GPU_TILE = 1 << 30
COLUMNS = 8192


def slack(dimension: int) -> float:
    """Return the largest possible error of a float32 product of unit vectors."""
    addends = dimension + 4
    return addends * UNIT / (1 - addends * UNIT)


def squared_lengths(vectors: Tensor) -> Tensor:
    """Return the squared length of each float32 vector [..., d] in float64.

    Raises:
        EmbergeError: if a vector has a number that is not finite.
    """
    doubles = vectors.double()
    lengths = _sum(doubles.mul_(doubles))
    if not bool(lengths.isfinite().all()):
        raise EmbergeError("a text's vector has numbers that are not finite; take another model")
    return lengths


def cosines(left: Tensor, right: Tensor, left_lengths: Tensor, right_lengths: Tensor) -> Tensor:
    """Return the exact cosines of float32 vectors [..., d], which broadcast, given their squared lengths.

    A vector of zeros has the cosine 0 with every other vector.
    """
    products = _sum(left.double() * right.double())
    lengths = (left_lengths * right_lengths).sqrt_()
    return products / lengths.masked_fill_(lengths == 0, 1.0)


def unit_rows(vectors: Tensor, lengths: Tensor) -> Tensor:
    """Return float32 vectors [n, d] scaled to length 1, given their squared lengths [n]."""
    scale = lengths.sqrt()
    scale.masked_fill_(scale == 0, 1.0)
    return (vectors.double() / scale[:, None]).float()


def _sum(addends: Tensor) -> Tensor:
    """Return sums of float64 numbers over the last axis, by repeated halving in place."""
    width = addends.shape[-1]
    while width > 1:
        half = (width + 1) // 2
        addends[..., : width - half] += addends[..., half:width]
        width = half
    return addends[..., 0].clone()


@dataclass(frozen=True, slots=True)
class SearchMemory:
    """Memory that a search may use for its blocks; it affects only the speed."""

    memory: int = 512 << 20

    def tile(self, device: str, queries: int, spaces: int = 1) -> tuple[int, int]:
        """Return (query count, document count) of the products that are computed together."""
        most = CPU_TILE if device == "cpu" else GPU_TILE
        # Masks, and candidates while they are chosen, take as much as the products again.
        products = max(1024, min(self.memory // 4, most) // (4 * spaces))
        columns = min(COLUMNS, products)
        return max(1, min(queries, products // columns)), columns

    def queries(self, dimension: int) -> int:
        """Return the number of queries that fit into memory together."""
        return max(1, self.memory // 8 // (8 * dimension))


@contextmanager
def full_precision() -> Iterator[None]:
    """Let torch multiply matrices in float32 within the block: no TF32, no bfloat16."""
    import torch

    old_precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(old_precision)


def round_up(numbers: NDArray[np.float64], device: str) -> Tensor:
    """Return float32 numbers that are not below these, rounded up."""
    import numpy as np
    import torch

    near = numbers.astype(np.float32)
    return torch.from_numpy(np.nextafter(near, np.float32(np.inf))).to(device)


def round_down(numbers: NDArray[np.float64], device: str) -> Tensor:
    """Return float32 numbers that are not above these, rounded down."""
    return -round_up(-numbers, device)
