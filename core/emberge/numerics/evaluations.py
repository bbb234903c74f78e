"""Arithmetic on rows of several models, by torch or by compiled kernels, with equal bytes.

`TorchEvaluation` works on rows that are already decoded and changed. `KernelEvaluation` decodes rows, applies
the changes and computes the result in one pass over chunks that fit into the processor's first cache. Both
sum in the same fixed order, by lanes, as the order of a library's sums is not fixed. Of magnitudes and
squares, lane l adds elements l, l + 1,024, … of a run of 65,536 in the numbers' own type, and the lanes of
all runs are added in float64. Of products of two models, lane l adds elements l, l + 256, … in float64. At
last the lanes are added in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from emberge.numerics.buffers import pooled_array, pooled_like
from emberge.numerics.delta_changes import DeltaChange, Limit, TakeVariance
from emberge.numerics.stored_rows import StoredRows

_LANES, _RUN = 1 << 10, 1 << 16
# Lanes of products, which are added in float64 alone, and the elements that NumPy multiplies at once.
_GRAM_LANES, _GRAM_PART = 1 << 8, 1 << 14
# Elements whose inner products are summed in the numbers' own type.
_GRAM_RUN = 8192


class Bracket(NamedTuple):
    """The range of bit patterns, `low` to `high`, that contains the limit of model number `row`.

    In this range, the `frequent` patterns are counted row by row; all others are collected.
    """

    row: int
    low: int
    high: int
    frequent: Sequence[int] = ()


class BracketCount(NamedTuple):
    """Counts of magnitudes `above` and `inside` a bracket, and of nonzero magnitudes.

    `values` are the infrequent patterns inside, and `rows` the row of each, counted from the block's first
    row. `ties` [frequent, rows] counts each frequent pattern in each row.
    """

    above: int
    inside: int
    nonzero: int
    values: np.ndarray
    rows: np.ndarray
    ties: np.ndarray


class Evaluation(Protocol):
    """Results computed from several models' rows [models, *rows] and the base's."""

    def values(self) -> Tensor:
        """Return the rows themselves, [models, *rows]."""
        ...

    def differences(self) -> Tensor:
        """Return the first model's rows, and the other models' differences from it."""
        ...

    def combine(self, coefficients: Sequence[float], *, add_base: bool) -> Tensor:
        """Return Σ coefficient × rows in model order, plus the base's rows with `add_base`."""
        ...

    def elect(
        self, votes: Sequence[float], weights: Sequence[float], *, normalize: bool, scale: float
    ) -> Tensor:
        """Return base + scale × the weighted mean of the values that have the sign elected by `votes`.

        If the votes add up to zero, the sign is plus. Without `normalize` the sum is not divided by the
        weights of the agreeing models.
        """
        ...

    def sums(self, *, squares: bool) -> Tensor:
        """Return the sum of each model's magnitudes or `squares`, float64 [models]."""
        ...

    def gram(self, *, differences: bool) -> np.ndarray:
        """Return the inner products of the rows (or `differences()`), float64 [models, models]."""
        ...

    def count(self, brackets: Sequence[Bracket], width: int) -> list[BracketCount]:
        """Return counts of the magnitudes above and inside each bracket, for rows of `width` elements."""
        ...


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

    def combine(self, coefficients: Sequence[float], *, add_base: bool) -> Tensor:
        total = weighted_sum(coefficients, self.rows)
        return total.add_(self._required_base) if add_base else total

    def elect(
        self, votes: Sequence[float], weights: Sequence[float], *, normalize: bool, scale: float
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
            least = _find_least_divisor(weights)
            total.div_(divisor.add_(divisor == 0) if least is None else divisor.clamp_(min=least))
        return torch.add(self._required_base, total, alpha=scale, out=total)

    def sums(self, *, squares: bool) -> Tensor:
        flat = self.rows.reshape(len(self.rows), -1)
        change = torch.square if squares else torch.abs
        magnitudes = pooled_like(flat, flat.shape[1:])
        return torch.tensor(
            [_sum_in_lanes(change(row, out=magnitudes)) for row in flat], dtype=torch.float64
        )

    def gram(self, *, differences: bool) -> np.ndarray:
        rows = self.differences() if differences else self.rows
        if rows.device.type != "cpu":
            on_device: np.ndarray = gram(rows).cpu().numpy()
            return on_device
        return _build_gram(_multiply_in_lanes(rows.reshape(len(rows), -1).numpy()), len(rows))

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


@dataclass(frozen=True, slots=True, eq=False)
class KernelEvaluation:
    """An evaluation of stored rows by compiled kernels, on a CPU in float32."""

    stored: StoredRows
    rows: Any
    changes: Any
    models: int

    @classmethod
    def of(
        cls,
        stored: StoredRows,
        changes: Sequence[DeltaChange],
        deltas: Tensor | None,
        start: int,
        *,
        subtract: bool,
    ) -> KernelEvaluation:
        """Build the kernels' arguments, for `deltas` or for the rows (minus the base if `subtract`)."""
        count = len(stored.models) if deltas is None else len(deltas)
        coded_changes = stored.kernels.KernelProgram.of(
            np.array([change.kernel_step for change in changes], np.int64),
            np.array([change.kernel_numbers() for change in changes], np.float32).reshape(
                -1, count
            ),
            np.array([change.kernel_words() for change in changes], np.int64).reshape(-1, count, 3),
            start,
        )
        merges_models = any(isinstance(change, TakeVariance) for change in changes)
        return cls(
            stored,
            stored.kernel_rows(deltas, subtract=subtract),
            coded_changes,
            1 if merges_models else count,
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one model's rows."""
        return self.stored.shape

    @property
    def kernels(self) -> Any:
        """The module of compiled kernels."""
        return self.stored.kernels

    def _run(self, kernel: Any, *arguments: Any) -> None:
        """Run a kernel on the rows with further arguments, and require that all rows are usable."""
        kernel(self.rows, self.changes, self.stored.size, *arguments)
        self.stored.require_usable()

    def values(self) -> Tensor:
        return self._decode(less_first=False)

    def differences(self) -> Tensor:
        return self._decode(less_first=True)

    def _decode(self, *, less_first: bool) -> Tensor:
        out = pooled_array((self.models, *self.shape), np.float32)
        self._run(self.kernels.decode, less_first, out.reshape(self.models, -1))
        return torch.from_numpy(out)

    def combine(self, coefficients: Sequence[float], *, add_base: bool) -> Tensor:
        _require_count(coefficients, self.models)
        out = pooled_array(self.shape, np.float32)
        factors = np.array(coefficients, np.float32)
        self._run(self.kernels.combine, factors, add_base, out.reshape(-1))
        return torch.from_numpy(out)

    def elect(
        self, votes: Sequence[float], weights: Sequence[float], *, normalize: bool, scale: float
    ) -> Tensor:
        least = _find_least_divisor(weights)
        out = pooled_array(self.shape, np.float32)
        self._run(
            self.kernels.elect,
            np.array(votes, np.float32),
            np.array(weights, np.float32),
            np.float32(-1 if least is None else least),
            normalize,
            np.float32(scale),
            out.reshape(-1),
        )
        return torch.from_numpy(out)

    def sums(self, *, squares: bool) -> Tensor:
        lanes = np.zeros((self.models, _LANES))
        self._run(self.kernels.sums, squares, False, lanes[:0], lanes)
        return torch.from_numpy(_add_lanes(lanes).copy())

    def sums_before_and_after(self) -> tuple[Tensor, Tensor]:
        """Return the sums of each model's magnitudes before and after the changes, from one reading."""
        before, after = np.zeros((len(self.stored.models), _LANES)), np.zeros((self.models, _LANES))
        self._run(self.kernels.sums, False, True, before, after)
        sums = [torch.from_numpy(_add_lanes(lanes).copy()) for lanes in (before, after)]
        return sums[0], sums[1]

    def gram(self, *, differences: bool) -> np.ndarray:
        lanes = np.zeros((self.models * (self.models + 1) // 2, _GRAM_LANES))
        self._run(self.kernels.gram, differences, lanes)
        return _build_gram(lanes, self.models)

    def count(self, brackets: Sequence[Bracket], width: int) -> list[BracketCount]:
        bracket_count = len(brackets)
        most_frequent = max((len(bracket.frequent) for bracket in brackets), default=0)
        frequent = np.full((bracket_count, most_frequent), -1, np.int64)
        for listed, bracket in zip(frequent, brackets, strict=True):
            listed[: len(bracket.frequent)] = bracket.frequent
        counts = np.zeros((bracket_count, 4), np.int64)
        shape = (bracket_count, self.stored.size)
        values, rows = pooled_array(shape, np.int32), pooled_array(shape, np.int32)
        ties = np.zeros((bracket_count, most_frequent, -(-self.stored.size // width)), np.int32)
        self._run(
            self.kernels.count_near_limits,
            width,
            np.array([bracket.row for bracket in brackets], np.int64),
            np.array([bracket.low for bracket in brackets], np.int64),
            np.array([bracket.high for bracket in brackets], np.int64),
            frequent,
            counts,
            values,
            rows,
            ties,
        )
        bracket_counts = []
        for i, (above, inside, nonzero, collected) in enumerate(counts.tolist()):
            frequent_ties = ties[i, : len(brackets[i].frequent)]
            # The room is used again by the next call, and what was collected stays.
            collected_values = values[i, :collected].copy(), rows[i, :collected].copy()
            bracket_counts.append(
                BracketCount(above, inside, nonzero, *collected_values, frequent_ties)
            )
        return bracket_counts


def weighted_sum(
    coefficients: Sequence[float], vectors: Tensor, out: Tensor | None = None
) -> Tensor:
    """Return Σ coefficient × vector of [n, *rows], added in order by one fused step each."""
    _require_count(coefficients, len(vectors))
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


def inner_products(evaluation: Evaluation, *, differences: bool) -> dict[str, Tensor]:
    """Return the Gram matrix "products", float64 [models, models]; with `differences`, also "differences".

    "differences" is the Gram matrix of the first model and the other models' differences from it. If the
    differences are short, as between models tuned from one base, "products" is computed from it.
    """
    if not differences:
        return {"products": torch.from_numpy(evaluation.gram(differences=False))}
    difference_products = evaluation.gram(differences=True)
    first = difference_products[0].copy()
    first[0] = 0.0
    products = difference_products + first + first[:, None] + difference_products[0, 0]
    products[0] = products[:, 0] = difference_products[0, 0] + first
    length, distances = products.diagonal().min(), difference_products.diagonal()[1:].sum()
    if distances > length / 4:
        products = evaluation.gram(differences=False)
    return {
        "products": torch.from_numpy(products),
        "differences": torch.from_numpy(difference_products),
    }


def _require_count(coefficients: Sequence[float], models: int) -> None:
    if len(coefficients) != models:
        raise ValueError(f"{len(coefficients)} coefficients for {models} models")


def _find_least_divisor(weights: Sequence[float]) -> float | None:
    """Return a divisor for empty sums, smaller than every sum of some weights; None if there is none.

    Clamping divisors to this minimum is ten times faster than replacing zeros, which is needed with negative
    weights.
    """
    if min(weights) < 0:
        return None
    return min((w for w in weights if w > 0), default=1.0) / 2


def _sum_in_lanes(row: Tensor) -> float:
    """Return the sum of a flat tensor: on a CPU in fixed lanes, elsewhere in the device's order."""
    if row.device.type != "cpu":
        return float(row.sum(dtype=torch.float64))
    values: np.ndarray = row.numpy()
    whole = len(values) // _RUN * _RUN
    runs = values[:whole].reshape(-1, _RUN // _LANES, _LANES)
    # Not one call for each run: a call costs as much as a thousand additions.
    lanes = np.add.reduce(np.add.reduce(runs, axis=1), axis=0, dtype=np.float64)
    padded = np.pad(values[whole:], (0, -len(values) % _LANES)).reshape(-1, _LANES)
    return float(_add_lanes(lanes + np.add.reduce(padded, axis=0)))


def _multiply_in_lanes(rows: np.ndarray) -> np.ndarray:
    """Return the products of each row [models, size] with itself and those before, in lanes [pairs, lanes].

    Products of float32 numbers are exact in float64.
    """
    count, size = rows.shape
    lanes = np.zeros((count * (count + 1) // 2, _GRAM_LANES))
    for start in range(0, size, _GRAM_PART):
        part = rows[:, start : start + _GRAM_PART].astype(np.float64)
        if missing := -part.shape[1] % _GRAM_LANES:
            part = np.pad(part, ((0, 0), (0, missing)))
        part = part.reshape(count, -1, _GRAM_LANES)
        # The first row has the sums so far, so that the order of additions does not depend on the parts.
        products = np.empty((1 + part.shape[1], _GRAM_LANES))
        pairs = ((i, j) for i in range(count) for j in range(i + 1))
        for lane_sums, (i, j) in zip(lanes, pairs, strict=True):
            products[0] = lane_sums
            np.multiply(part[i], part[j], out=products[1:])
            np.add.reduce(products, axis=0, out=lane_sums)
    return lanes


def _build_gram(lanes: np.ndarray, count: int) -> np.ndarray:
    """Return the symmetric matrix [count, count] whose lower triangle is given row by row, in lanes."""
    matrix: np.ndarray = np.zeros((count, count))
    lower = np.tri(count, dtype=bool)
    matrix[lower] = _add_lanes(lanes)
    return np.where(lower, matrix, matrix.T)


def _add_lanes(lanes: np.ndarray) -> np.ndarray:
    """Return the sums of float64 lanes [..., lanes], in order."""
    total: np.ndarray = lanes.cumsum(-1)[..., -1]
    return total


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
