"""Angles and means of directions, from inner products alone.

All inner products are of the first vector and of the others' differences to it: models that were tuned from
one base are nearly parallel, and products of the vectors themselves would lose the angle between them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from emberge import Block
    from torch import Tensor

__all__ = ["Directions", "difference_gram", "pair_sums", "slerp_coefficients"]

NO_DIRECTION = 1e-12  # a norm up to this points nowhere
SAME_DIRECTION = 1e-6  # an angle below this is walked in a straight line
# A mean of directions shorter than this has none: lengths are roots, so rounding alone may make 1e-8 of 0.
ANTIPODAL = 1e-7


def difference_gram(block: Block, vectors: Tensor) -> Tensor:
    """Inner products of (v₀, v₁ - v₀, …, vₙ - v₀), float64 [n, n]; sums over blocks."""
    differences = vectors - vectors[:1]
    differences[0] = vectors[0]
    return block.gram(differences)


def pair_sums(first: Tensor, second: Tensor, dim: int) -> Tensor:
    """(⟨a, a⟩, ⟨a, d⟩, ⟨d, d⟩) with d = b - a, float64, stacked, summed over one dimension."""
    a, d = first.double(), (second - first).double()
    return torch.stack([(a * a).sum(dim), (a * d).sum(dim), (d * d).sum(dim)])


def slerp_coefficients(
    sums: Tensor, t: float, linear_threshold: float | None = None
) -> tuple[Tensor, Tensor]:
    """What to multiply a and b by to walk the share t of the great circle from one to the other.

    `sums` is float64 [3, ...] as of `pair_sums`. Where a vector has no direction, or both have the same
    or opposite ones, or their cosine is beyond `linear_threshold`, the coefficients are (1 - t, t).
    """
    aa, ad, dd = sums
    norm_a, norm_b = aa.sqrt(), (aa + 2 * ad + dd).clamp(min=0).sqrt()
    directed = (norm_a > NO_DIRECTION) & (norm_b > NO_DIRECTION)
    norm_a = norm_a.where(directed, norm_a.new_tensor(1.0))
    norm_b = norm_b.where(directed, norm_b.new_tensor(1.0))
    # u - v and u + v in terms of a and d; 1/|a| - 1/|b| from the difference of squares, which cancels least.
    minus = (2 * ad + dd) / ((norm_a + norm_b) * norm_a * norm_b)
    plus = 1 / norm_a + 1 / norm_b
    apart = (minus**2 * aa - 2 * minus * ad / norm_b + dd / norm_b**2).clamp(min=0).sqrt()
    together = (plus**2 * aa + 2 * plus * ad / norm_b + dd / norm_b**2).clamp(min=0).sqrt()
    theta = 2 * torch.atan2(apart, together)
    curved = directed & (theta >= SAME_DIRECTION) & (together > SAME_DIRECTION)
    if linear_threshold is not None:
        curved = curved & ((1 - apart**2 / 2).abs() <= linear_threshold)
    sine = theta.sin().where(curved, theta.new_tensor(1.0))
    first = (((1 - t) * theta).sin() / sine).where(curved, theta.new_tensor(1.0 - t))
    second = ((t * theta).sin() / sine).where(curved, theta.new_tensor(t))
    return first, second


@dataclass(frozen=True)
class Directions:
    """Vectors of one tensor, known by `difference_gram` alone; anything in their span is coefficients."""

    gram: Tensor
    weights: Tensor

    @property
    def shares(self) -> np.ndarray:
        """The weights divided by their sum."""
        weights = self.weights.cpu().numpy()
        return np.asarray(weights / weights.sum())

    def norm(self, coefficients: np.ndarray) -> float:
        """The length of Σ cᵢ vᵢ."""
        turned = coefficients.copy()
        turned[0] = coefficients.sum()
        return math.sqrt(max(0.0, float(turned @ self.gram.cpu().numpy() @ turned)))

    def mean(self, *, steps: int, tolerance: float = 0.0) -> tuple[list[float], str]:
        """Coefficients of the mean direction at the mean length, and a warning or nothing.

        Starts from the normalised weighted mean of directions and takes up to `steps` steps of the
        Karcher iteration, M ← exp_M(Σ αᵢ log_M(uᵢ)), until a step is shorter than `tolerance`.
        Vectors without a direction count for the length only; without a mean direction the
        coefficients are those of the weighted mean.
        """
        shares = self.shares
        identity = np.eye(len(shares))
        norms = np.array([self.norm(row) for row in identity])
        directed = shares * (norms > NO_DIRECTION)
        if abs(directed.sum()) <= NO_DIRECTION:
            return shares.tolist(), ""
        units = identity / np.where(norms > NO_DIRECTION, norms, 1.0)[:, None]
        directed = directed / directed.sum()
        mean = directed @ units
        length = self.norm(mean)
        if length <= ANTIPODAL:
            return shares.tolist(), "directions cancel out; the weighted mean was taken"
        mean = np.asarray(mean / length)
        for _ in range(steps):
            step = sum(a * self._log(mean, unit) for a, unit in zip(directed, units, strict=True))
            size = self.norm(np.asarray(step))
            if size <= tolerance:
                break
            mean = math.cos(size) * mean + _sinc(size) * step
            mean = mean / self.norm(mean)
        return [float(c) for c in float(shares @ norms) * mean], ""

    def _log(self, mean: np.ndarray, unit: np.ndarray) -> np.ndarray:
        apart = self.norm(unit - mean)
        theta = 2 * math.atan2(apart, self.norm(unit + mean))
        if math.pi - theta < SAME_DIRECTION:
            return np.zeros_like(mean)  # every way leads to the opposite point
        return np.asarray(((unit - mean) + apart**2 / 2 * mean) / _sinc(theta))


def _sinc(x: float) -> float:
    return math.sin(x) / x if abs(x) > 1e-4 else 1 - x * x / 6
