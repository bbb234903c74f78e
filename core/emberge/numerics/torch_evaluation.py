"""Arithmetic on decoded rows of several models by torch, with the bytes of the compiled kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from emberge.numerics.buffers import pooled_like
from emberge.numerics.delta_changes import Limit
from emberge.numerics.evaluations import (
    Bracket,
    BracketCount,
    add_lanes,
    build_gram,
    least_divisor,
    require_count,
)
from emberge.numerics.row_kernels import GRAM_LANES, LANES

_RUN = 1 << 16
# The elements that NumPy multiplies at once.
_GRAM_PART = 1 << 14
# Elements whose inner products are summed in the numbers' own type.
_GRAM_RUN = 8192


@dataclass(frozen=True, slots=True, eq=False)
class TorchEvaluation:
    """An evaluation by torch, or NumPy where that is faster, on any device and in any float dtype."""

    rows: Tensor
    base: Tensor | None = None

    def values(self) -> Tensor:
        return self.rows

    def differences(self) -> Tensor:
        offsets = torch.sub(self.rows, self.rows[:1], out=pooled_like(self.rows))
        offsets[0] = self.rows[0]
        return offsets

    def combine(
        self, coefficients: Sequence[float], *, add_base: bool, dtype: str = "float32"
    ) -> Tensor:
        total = weighted_sum(coefficients, self.rows)
        return total.add_(self._required_base) if add_base else total

    def elect(
        self,
        votes: Sequence[float],
        weights: Sequence[float],
        *,
        normalize: bool,
        scale: float,
        dtype: str = "float32",
    ) -> Tensor:
        deltas = self.rows
        elected = torch.mul(deltas[0], votes[0], out=pooled_like(deltas[0]))
        for vote, delta in zip(votes[1:], deltas[1:], strict=True):
            elected.add_(delta, alpha=vote)
        # A half with the elected sign: an indicator, less a half.
        elected.ge_(0).sub_(0.5)
        total, divisor = pooled_like(elected).zero_(), pooled_like(elected).zero_()
        has_elected_sign = pooled_like(elected)
        for weight, delta in zip(weights, deltas, strict=True):
            torch.mul(delta, elected, out=has_elected_sign)
            # Ones and zeros of the numbers' own type multiply several times faster than truths.
            has_elected_sign.gt_(0) if weight > 0 else has_elected_sign.lt_(0)
            total.addcmul_(has_elected_sign, delta, value=weight)
            if normalize:
                divisor.add_(has_elected_sign, alpha=weight)
        if normalize:
            least = least_divisor(weights)
            total.div_(divisor.add_(divisor == 0) if least is None else divisor.clamp_(min=least))
        return torch.add(self._required_base, total, alpha=scale, out=total)

    def patterns(self, models: Sequence[int] | None) -> Iterator[np.ndarray]:
        chosen = range(len(self.rows)) if models is None else models
        yield from (Limit.patterns(self.rows[model].reshape(-1)) for model in chosen)

    def sums(self, *, squares: bool) -> np.ndarray:
        flat = self.rows.reshape(len(self.rows), -1)
        change = torch.square if squares else torch.abs
        magnitudes = pooled_like(flat, flat.shape[1:])
        return np.array([_sum_in_lanes(change(row, out=magnitudes)) for row in flat])

    def gram(self, *, differences: bool) -> np.ndarray:
        rows = self.differences() if differences else self.rows
        if rows.device.type != "cpu":
            on_device: np.ndarray = gram(rows).cpu().numpy()
            return on_device
        return build_gram(_multiply_in_lanes(rows.reshape(len(rows), -1).numpy()), len(rows))

    def count(self, brackets: Sequence[Bracket], width: int) -> list[BracketCount]:
        flat = self.rows.reshape(len(self.rows), -1)
        patterns: dict[int, np.ndarray] = {}
        counts = []
        for bracket in brackets:
            # Brackets come in the order of models, so that one model's patterns are in memory at a time.
            if bracket.row not in patterns:
                patterns = {bracket.row: Limit.patterns(flat[bracket.row])}
            counts.append(_count_patterns(patterns[bracket.row], bracket, width))
        return counts

    @property
    def _required_base(self) -> Tensor:
        if self.base is None:
            raise ValueError("this stage needs a base")
        return self.base


def weighted_sum(
    coefficients: Sequence[float], vectors: Tensor, out: Tensor | None = None
) -> Tensor:
    """Return Σ coefficient × vector of [n, *rows], added in order by one fused step each."""
    require_count(coefficients, len(vectors))
    total = pooled_like(vectors[0]) if out is None else out
    torch.mul(vectors[0], coefficients[0], out=total)
    for value, vector in zip(coefficients[1:], vectors[1:], strict=True):
        total.add_(vector, alpha=value)
    return total


def gram(vectors: Tensor) -> Tensor:
    """Return the inner products of [n, *rows], float64 [n, n].

    float32 is summed in runs of 8,192 elements, and the runs in float64: half the time of float64
    throughout, at a relative error near 1e-7.
    """
    flat = vectors.reshape(vectors.shape[0], -1)
    runs = flat.shape[1] // _GRAM_RUN if flat.dtype.itemsize < 8 else 0
    head, tail = flat[:, : runs * _GRAM_RUN], flat[:, runs * _GRAM_RUN :].double()
    products = tail @ tail.mT
    if runs:
        parts = head.reshape(flat.shape[0], runs, _GRAM_RUN).transpose(0, 1)
        products = products + (parts @ parts.mT).double().sum(0)
    return products


def _sum_in_lanes(row: Tensor) -> float:
    """Return the sum of a flat tensor: on a CPU in fixed lanes, elsewhere in the device's order."""
    if row.device.type != "cpu":
        return float(row.sum(dtype=torch.float64))
    values: np.ndarray = row.numpy()
    whole = len(values) // _RUN * _RUN
    runs = values[:whole].reshape(-1, _RUN // LANES, LANES)
    # Not one call for each run: a call costs as much as a thousand additions.
    lanes = np.add.reduce(np.add.reduce(runs, axis=1), axis=0, dtype=np.float64)
    padded = np.pad(values[whole:], (0, -len(values) % LANES)).reshape(-1, LANES)
    return float(add_lanes(lanes + np.add.reduce(padded, axis=0)))


def _multiply_in_lanes(rows: np.ndarray) -> np.ndarray:
    """Return the products of each row [models, size] with itself and those before, in lanes [pairs, lanes].

    Products of float32 numbers are exact in float64.
    """
    count, size = rows.shape
    lanes = np.zeros((count * (count + 1) // 2, GRAM_LANES))
    for start in range(0, size, _GRAM_PART):
        part = rows[:, start : start + _GRAM_PART].astype(np.float64)
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


def _count_patterns(patterns: np.ndarray, bracket: Bracket, width: int) -> BracketCount:
    """Count flat bit patterns above and inside a bracket, with NumPy, which is faster than torch here."""
    unsigned = np.dtype(f"u{patterns.itemsize}").type
    # Values below wrap around to large ones, so that one comparison finds what is inside.
    shifted = patterns.view(unsigned) - unsigned(bracket.low)
    places = np.flatnonzero(shifted <= unsigned(bracket.high - bracket.low))
    values = patterns[places]
    rows = (places // width).astype(np.int32)
    # The number of the frequent pattern that a value equals, from 1; 0 for the others.
    frequent_index = np.zeros(len(places), np.int32)
    for number, pattern in enumerate(bracket.frequent, 1):
        frequent_index += np.int32(number) * (values == pattern)
    count = -(-len(patterns) // width)
    cells = (len(bracket.frequent) + 1) * count
    ties = np.bincount(frequent_index * count + rows, minlength=cells).reshape(-1, count)[1:]
    is_infrequent = frequent_index == 0
    return BracketCount(
        int(np.count_nonzero(patterns > bracket.high)),
        len(places),
        int(np.count_nonzero(patterns)),
        values[is_infrequent],
        rows[is_infrequent],
        ties,
    )
