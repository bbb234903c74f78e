"""Recorded changes of deltas, each with a torch version and a step of the row kernels; loads no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from emberge.numerics.buffers import pooled_like
from emberge.numerics.noise import SPAN, odd_numbers, uniform

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_BEYOND_ALL_ROWS = 1 << 60
_UNREACHED = (1 << 63) - 2
# The steps of the kernels, numbered as in `row_kernels`.
_KEEP, _UNDO, _DROP, _SCALE, _DIVIDE, _VARIANCE, _SELECT, _DRAWN = range(8)

Words = tuple[int, int, int]


class Limit(NamedTuple):
    """A limit as a bit pattern: larger magnitudes are kept, and of equal magnitudes the first in the tensor.

    Equal magnitudes are kept in all rows that begin before element `row` of the tensor; from there on,
    `quota` of them are kept.
    """

    pattern: int
    row: int = _BEYOND_ALL_ROWS
    quota: int = 0

    @classmethod
    def all(cls) -> Limit:
        """Return the limit that all magnitudes reach."""
        return cls(0)

    @classmethod
    def nothing(cls) -> Limit:
        """Return the limit that no magnitude reaches, not even infinity or NaN."""
        return cls(_UNREACHED, -1)

    @staticmethod
    def patterns(values: Tensor | np.ndarray) -> np.ndarray:
        """Return the bit patterns of magnitudes, as integers that sort in the same order."""
        numbers = values if isinstance(values, np.ndarray) else values.cpu().numpy()
        magnitudes: np.ndarray = np.abs(numbers)
        return magnitudes.view(np.int32 if magnitudes.itemsize == 4 else np.int64)

    @staticmethod
    def magnitude(pattern: int, dtype: torch.dtype) -> float:
        """Return the magnitude whose bit pattern is `pattern`, as a number of a dtype."""
        whole, real = (np.int32, np.float32) if dtype.itemsize == 4 else (np.int64, np.float64)
        return float(whole(pattern).view(real))


class DeltaChange(Protocol):
    """A change of deltas that depends on each element's values and its position in the tensor."""

    @property
    def kernel_step(self) -> int:
        """Number of the row kernels' step that makes this change."""
        ...

    def apply(self, deltas: Tensor, start: int) -> Tensor:
        """Change deltas [models, *rows] with torch, in place where possible, and return them."""
        ...

    def kernel_numbers(self) -> Sequence[float]:
        """Return the factor for each model, as an argument of the row kernels."""
        ...

    def kernel_words(self) -> Sequence[Words]:
        """Return three integers for each model, as arguments of the row kernels."""
        ...


@dataclass(frozen=True, slots=True)
class KeepLargest:
    """A change that keeps each model's values at or above its limit or, with `undo`, those below it."""

    limits: Sequence[Limit]
    undo: bool = False

    @property
    def kernel_step(self) -> int:
        return _UNDO if self.undo else _KEEP

    def apply(self, deltas: Tensor, start: int) -> Tensor:
        flat = deltas.view(len(deltas), -1)
        zeroed_values = pooled_like(flat[0]) if self.undo else None
        for limit, values in zip(self.limits, flat, strict=True):
            _keep_largest(values, values if zeroed_values is None else zeroed_values, limit, start)
            if zeroed_values is not None:
                values.sub_(zeroed_values)
        return deltas

    def kernel_numbers(self) -> Sequence[float]:
        return [0.0] * len(self.limits)

    def kernel_words(self) -> Sequence[Words]:
        return [_limit_words(limit) for limit in self.limits]


@dataclass(frozen=True, slots=True)
class DropAtRandom:
    """A change that keeps each value with its model's probability, by a hash of model and position."""

    densities: Sequence[float]
    keys: Sequence[tuple[object, ...]]

    kernel_step = _DROP
    reach = SPAN
    """Number of positions that share the hash's multipliers; kernels cannot go beyond it."""

    def apply(self, deltas: Tensor, start: int) -> Tensor:
        density = _spread_over_models(self.densities, deltas)
        # A mask of ones and zeros multiplies several times faster than one of truths.
        return uniform(deltas, start, self.keys).lt_(density).mul_(deltas)

    def kernel_numbers(self) -> Sequence[float]:
        return self.densities

    def kernel_words(self) -> Sequence[Words]:
        return [(*odd_numbers((*key, 0)), 0) for key in self.keys]


@dataclass(frozen=True, slots=True, eq=False)
class KeepDrawn:
    """A change that keeps the values whose bit is 1: `bits` [models, rows, (width + 7) // 8] (`draw_ranked`).

    The bits are those of the rows alone that are changed, each of `width` elements.
    """

    bits: np.ndarray
    width: int

    kernel_step = _DRAWN

    def apply(self, deltas: Tensor, start: int) -> Tensor:
        mask = np.unpackbits(self.bits, axis=-1, count=self.width, bitorder="little")
        return deltas.mul_(deltas.new_tensor(mask).reshape(deltas.shape))

    def kernel_numbers(self) -> Sequence[float]:
        return [0.0] * len(self.bits)

    def kernel_words(self) -> Sequence[Words]:
        step = self.bits.strides[0]
        first = self.bits.ctypes.data
        row_bytes = self.bits.shape[-1]
        return [(first + m * step, self.width, row_bytes) for m in range(len(self.bits))]


@dataclass(frozen=True, slots=True)
class ScaleDeltas:
    """A change that multiplies each model's deltas by its factor."""

    factors: Sequence[float]

    kernel_step = _SCALE

    def apply(self, deltas: Tensor, start: int) -> Tensor:
        return deltas.mul_(_spread_over_models(self.factors, deltas))

    def kernel_numbers(self) -> Sequence[float]:
        return self.factors

    def kernel_words(self) -> Sequence[Words]:
        return [(0, 0, 0)] * len(self.factors)


@dataclass(frozen=True, slots=True)
class DivideDeltas:
    """A change that divides each model's deltas by its divisor."""

    divisors: Sequence[float]

    kernel_step = _DIVIDE

    def apply(self, deltas: Tensor, start: int) -> Tensor:
        return deltas.div_(_spread_over_models(self.divisors, deltas))

    def kernel_numbers(self) -> Sequence[float]:
        return self.divisors

    def kernel_words(self) -> Sequence[Words]:
        return [(0, 0, 0)] * len(self.divisors)


@dataclass(frozen=True, slots=True)
class TakeVariance:
    """A change that replaces all models' deltas by their variance over the models."""

    models: int

    kernel_step = _VARIANCE

    def apply(self, deltas: Tensor, start: int) -> Tensor:
        return _compute_variance(deltas)[None]

    def kernel_numbers(self) -> Sequence[float]:
        return [1 / self.models] * self.models

    def kernel_words(self) -> Sequence[Words]:
        return [(0, 0, 0)] * self.models


@dataclass(frozen=True, slots=True)
class KeepVaried:
    """A change that keeps all models' deltas where their variance is above zero and reaches a limit."""

    limit: Limit
    models: int

    kernel_step = _SELECT

    def apply(self, deltas: Tensor, start: int) -> Tensor:
        variances = _compute_variance(deltas)
        _keep_largest(variances.view(-1), variances.view(-1), self.limit, start)
        # What stays is above zero, so signs make the mask, faster than a comparison's truths.
        return deltas.mul_(variances.sign_())

    def kernel_numbers(self) -> Sequence[float]:
        return [1 / self.models] * self.models

    def kernel_words(self) -> Sequence[Words]:
        return [_limit_words(self.limit)] * self.models


def _compute_variance(deltas: Tensor) -> Tensor:
    """Return the variance of [models, *rows] over the models, [*rows]."""
    import torch

    share = 1 / len(deltas)
    mean = torch.mul(deltas[0], share, out=pooled_like(deltas[0]))
    for delta in deltas[1:]:
        mean.add_(delta, alpha=share)
    variance, distance = pooled_like(mean).zero_(), pooled_like(mean)
    for delta in deltas:
        variance.add_(torch.sub(delta, mean, out=distance).square_(), alpha=share)
    return variance


def _keep_largest(source: Tensor, into: Tensor, limit: Limit, start: int) -> None:
    """Write the flat values that reach a limit, and zeros for other values; `into` may be `source`.

    `start` is the position of the first value.
    """
    if limit.pattern == _UNREACHED:
        into.zero_()
        return
    split = _count_below_last_tie(source, limit, start)
    if split:
        _keep_from(source[:split], into[:split], limit.pattern)
    if split < source.numel():
        _keep_from(source[split:], into[split:], limit.pattern + 1)


def _count_below_last_tie(source: Tensor, limit: Limit, start: int) -> int:
    """Return the number of a block's values up to and including the last kept tie."""
    at = max(0, min(limit.row - start, source.numel()))
    if limit.row < start or at == source.numel():
        return at
    ties = np.flatnonzero(Limit.patterns(source[at:]) == limit.pattern)
    return at + int(ties[limit.quota - 1]) + 1


def _keep_from(source: Tensor, into: Tensor, least: int) -> None:
    """Copy the values whose magnitude's bit pattern is at least `least`."""
    if least == 0:
        into.copy_(source)
    else:
        import torch

        just_below = Limit.magnitude(least - 1, source.dtype)
        torch.ops.aten.hardshrink.out(source, just_below, out=into)


def _spread_over_models(values: Sequence[float], like: Tensor) -> Tensor:
    return like.new_tensor(list(values)).reshape(-1, *[1] * (like.dim() - 1))


def _limit_words(limit: Limit) -> Words:
    # No float32 has a larger pattern than 2³¹ - 1, and the kernels look for one more than the limit's.
    return min(limit.pattern, (1 << 31) - 2), limit.row, limit.quota
