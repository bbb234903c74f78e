"""Blocks in which queries and documents are compared, and the arithmetic of their products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


# Bytes of one block of products: larger ones are no faster.
CPU_TILE = 64 << 20
GPU_TILE = 1 << 30
COLUMNS = 8192


@dataclass(frozen=True, slots=True)
class SearchMemory:
    """Memory that a search may take beside vectors' lengths and its result: it decides only the speed."""

    memory: int = 512 << 20

    def tile(self, device: str, queries: int, spaces: int = 1) -> tuple[int, int]:
        """Return the numbers of queries and of documents whose products are computed together."""
        most = CPU_TILE if device == "cpu" else GPU_TILE
        # Masks, and candidates while they are chosen, take as much as the products again.
        products = max(1024, min(self.memory // 4, most) // (4 * spaces))
        columns = min(COLUMNS, products)
        return max(1, min(queries, products // columns)), columns

    def queries(self, dimension: int) -> int:
        """Return how many queries may be searched together, whose vectors are in memory."""
        return max(1, self.memory // 8 // (8 * dimension))


@contextmanager
def full_precision() -> Iterator[None]:
    """Let torch multiply matrices in float32 within the block: no TF32, no bfloat16."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def rounded_up(numbers: NDArray[np.float64], device: str) -> Tensor:
    """Return float32 numbers that are above these."""
    import numpy as np
    import torch

    near = numbers.astype(np.float32)
    return torch.from_numpy(np.nextafter(near, np.float32(np.inf))).to(device)


def rounded_down(numbers: NDArray[np.float64], device: str) -> Tensor:
    """Return float32 numbers that are below these."""
    return -rounded_up(-numbers, device)
