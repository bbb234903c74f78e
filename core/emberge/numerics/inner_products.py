"""Inner products of nearly parallel vectors, piece by piece: a piece stays in the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from emberge.numerics.buffers import pooled_like

__all__ = ["PIECE", "gram", "inner_products"]

_RUN = 8192
PIECE = 8 * _RUN
"""Elements of one vector in a piece."""

Pieces = Callable[[], Iterable[Tensor]]
"""The parts of some vectors [n, elements], in order, as often as asked for."""


def gram(flat: Tensor) -> Tensor:
    """Return the inner products of [n, elements], float64 [n, n].

    float32 is summed in runs of 8,192 elements, and the runs in float64: half the time of float64
    throughout, at a relative error near 1e-7.
    """
    runs = flat.shape[1] // _RUN if flat.dtype.itemsize < 8 else 0
    head, tail = flat[:, : runs * _RUN], flat[:, runs * _RUN :].double()
    sums = tail @ tail.mT
    if runs:
        parts = head.reshape(flat.shape[0], runs, _RUN).transpose(0, 1)
        sums = sums + (parts @ parts.mT).double().sum(0)
    return sums


def inner_products(pieces: Pieces, *, differences: bool) -> dict[str, Tensor]:
    """Return "products" of vectors, and "differences": of the first one and the others' differences to it.

    The products follow from those of short differences, so that vectors that were tuned from one base need
    one sum alone.
    """
    if not differences:
        return {"products": _sum(map(gram, pieces()))}
    apart = _sum(map(_of_differences, pieces()))
    first = apart[0].clone()
    first[0] = 0.0
    products = apart + first + first[:, None] + apart[0, 0]
    products[0] = products[:, 0] = apart[0, 0] + first
    lengths = products.diagonal().min()
    if float(apart.diagonal()[1:].sum()) > float(lengths) / 4:
        products = _sum(map(gram, pieces()))
    return {"products": products, "differences": apart}


def _sum(grams: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(grams)).sum(0)


def _of_differences(flat: Tensor) -> Tensor:
    apart = torch.sub(flat, flat[:1], out=pooled_like(flat))
    apart[0] = flat[0]
    return gram(apart)
