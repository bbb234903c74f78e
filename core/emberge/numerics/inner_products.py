"""Inner products of several models' rows, by torch and by a compiled kernel, with the same bytes.

Both sum in the same fixed order: lane l adds elements l, l + 256, … of the products of two models in float64,
and at last the lanes are added in order. The module loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from emberge.numerics.buffers import take_tensor_like
from emberge.numerics.row_kernels import GRAM_LANES

if TYPE_CHECKING:
    from torch import Tensor

    from emberge.numerics.delta_program import DeltaProgram
    from emberge.numerics.stored_rows import KernelRows

# The elements that NumPy multiplies at once.
_PRODUCTS_AT_ONCE = 1 << 14
# Elements whose inner products a GPU sums in the numbers' own type.
_GPU_STRETCH = 8192


@dataclass(frozen=True, slots=True)
class InnerProducts:
    """The Gram matrix "products" of the models or their deltas, float64 [models, models].

    With `differences`, there is also the Gram matrix "differences" of the first model and the other models'
    differences from it. If the differences are short, as between models tuned from one base, "products" is
    computed from it.
    """

    of_deltas: bool
    differences: bool

    def by_torch(self, rows: DeltaProgram) -> dict[str, np.ndarray]:
        vectors = rows.deltas if self.of_deltas else rows.tensors
        return self._complete(lambda less_first: _multiply(vectors, less_first))

    def by_kernels(self, rows: KernelRows) -> dict[str, np.ndarray]:

        def multiply(less_first: bool) -> np.ndarray:
            lanes = np.zeros((rows.count * (rows.count + 1) // 2, GRAM_LANES))
            rows.call("gram", less_first, rows.count, lanes)
            return _build_gram(lanes, rows.count)

        return self._complete(multiply)

    def _complete(self, multiply: Callable[[bool], np.ndarray]) -> dict[str, np.ndarray]:
        if not self.differences:
            return {"products": multiply(False)}
        products_of_differences = multiply(True)
        first = products_of_differences[0].copy()
        first[0] = 0.0
        products = products_of_differences + first + first[:, None] + products_of_differences[0, 0]
        products[0] = products[:, 0] = products_of_differences[0, 0] + first
        shortest, distances = (
            products.diagonal().min(),
            products_of_differences.diagonal()[1:].sum(),
        )
        if distances > shortest / 4:
            products = multiply(False)
        return {"products": products, "differences": products_of_differences}


def add_lanes(lanes: np.ndarray) -> np.ndarray:
    """Return the sums of float64 lanes [..., lanes], in order."""
    total: np.ndarray = lanes.cumsum(-1)[..., -1].copy()
    return total


def _build_gram(lanes: np.ndarray, count: int) -> np.ndarray:
    """Return the symmetric matrix [count, count] whose lower triangle is given row by row, in lanes."""
    matrix: np.ndarray = np.zeros((count, count))
    lower = np.tri(count, dtype=bool)
    matrix[lower] = add_lanes(lanes)
    return np.where(lower, matrix, matrix.T)


def _multiply(rows: Tensor, less_first: bool) -> np.ndarray:
    """Return the inner products of [n, *rows], or of the first and the others' differences from it."""
    import torch

    if less_first:
        first = rows[0]
        rows = torch.sub(rows, rows[:1], out=take_tensor_like(rows))
        rows[0] = first
    flat = rows.reshape(len(rows), -1)
    if flat.device.type != "cpu":
        return _multiply_on_gpu(flat)
    return _build_gram(_multiply_in_lanes(flat.numpy()), len(flat))


def _multiply_on_gpu(flat: Tensor) -> np.ndarray:
    """Return the inner products of [n, size]: float32 is summed in runs of 8,192, and the runs in float64.

    This takes half the time of float64 throughout, at a relative error near 1e-7.
    """
    runs = flat.shape[1] // _GPU_STRETCH if flat.dtype.itemsize < 8 else 0
    head, tail = flat[:, : runs * _GPU_STRETCH], flat[:, runs * _GPU_STRETCH :].double()
    products = tail @ tail.mT
    if runs:
        parts = head.reshape(flat.shape[0], runs, _GPU_STRETCH).transpose(0, 1)
        products = products + (parts @ parts.mT).double().sum(0)
    on_cpu: np.ndarray = products.cpu().numpy()
    return on_cpu


def _multiply_in_lanes(rows: np.ndarray) -> np.ndarray:
    """Return the products of each row [models, size] with itself and those before, in lanes [pairs, lanes].

    Products of float32 numbers are exact in float64.
    """
    count, size = rows.shape
    lanes = np.zeros((count * (count + 1) // 2, GRAM_LANES))
    for start in range(0, size, _PRODUCTS_AT_ONCE):
        part = rows[:, start : start + _PRODUCTS_AT_ONCE].astype(np.float64)
        if missing := -part.shape[1] % GRAM_LANES:
            part = np.pad(part, ((0, 0), (0, missing)))
        part = part.reshape(count, -1, GRAM_LANES)
        # The first row has the sums so far, so that the order of additions does not depend on the parts.
        products = np.empty((1 + part.shape[1], GRAM_LANES))
        pairs = ((i, j) for i in range(count) for j in range(i + 1))
        for lane_sums, (i, j) in zip(lanes, pairs, strict=True):
            products[0] = lane_sums
            np.multiply(part[i], part[j], out=products[1:])
            np.add.reduce(products, axis=0, out=lane_sums)
    return lanes
