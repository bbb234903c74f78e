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
    from torch import Tensor

__all__ = ["Directions", "slerp_coefficients"]

NO_DIRECTION = 1e-12  # a norm up to this points nowhere
SAME_DIRECTION = 1e-6  # an angle below this is walked in a straight line
# A mean of directions shorter than this has none: lengths are roots, so rounding alone may make 1e-8 of 0.
ANTIPODAL = 1e-7


def slerp_coefficients(gram: Tensor, t: float, linear_threshold: float | None = None) -> Tensor:
    """What to multiply a and b by to walk the share t of the great circle from one to the other.

    `gram` is float64 [..., 2, 2], of a and b - a; the coefficients are [..., 2]. Where a vector has no
    direction, or both have the same or opposite ones, or their cosine is beyond `linear_threshold`, they
    are (1 - t, t).
    """
    aa, ad, dd = gram[..., 0, 0], gram[..., 0, 1], gram[..., 1, 1]
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
    return torch.stack([first, second], -1)


@dataclass(frozen=True)
class Directions:
    """Vectors known by Gram matrices [..., n, n] alone; anything in their span is coefficients [..., n].

    The Gram matrices are of the first vector and of the others' differences to it.
    """

    gram: Tensor
    weights: Tensor

    def mean(self, *, steps: int, tolerance: float = 0.0) -> tuple[Tensor, str]:
        """Coefficients of the mean direction at the mean length, float64 [..., n], and a warning or "".

        Starts from the normalised weighted mean of directions and takes up to `steps` steps of the
        Karcher iteration, M ← exp_M(Σ αᵢ log_M(uᵢ)), until a step is shorter than `tolerance`.
        Vectors without a direction count for the length only; without a mean direction the
        coefficients are those of the weighted mean.
        """
        span = _Span(self.gram.cpu().numpy())
        weights = self.weights.cpu().numpy()
        shares = weights / weights.sum()
        norms = span.norms(np.eye(len(shares)))
        pointed = norms > NO_DIRECTION
        inverse = np.where(pointed, 1 / np.where(pointed, norms, 1.0), 1.0)
        directed = shares * pointed
        total = directed.sum(-1, keepdims=True)
        aimless = np.abs(total) <= NO_DIRECTION
        directed = directed / np.where(aimless, 1.0, total)
        mean, length = span.normalised(directed * inverse)
        cancelled = ~aimless & (length <= ANTIPODAL)
        mean = _iterated(span, mean, inverse, directed, steps, tolerance)
        found = np.where(aimless | cancelled, shares, (norms @ shares)[..., None] * mean)
        warning = "directions cancel out; the weighted mean was taken" if cancelled.any() else ""
        return self.gram.new_tensor(found), warning


@dataclass(frozen=True)
class _Span:
    """Lengths of combinations, from the Gram matrices of a first vector and the differences to it."""

    gram: np.ndarray

    def norms(self, coefficients: np.ndarray) -> np.ndarray:
        """Lengths [..., m] of combinations [..., m, n]."""
        turned = coefficients.copy()
        turned[..., 0] = coefficients.sum(-1)
        squares = np.einsum("...mi,...ij,...mj->...m", turned, self.gram, turned)
        return np.asarray(np.sqrt(squares.clip(min=0.0)))

    def norm(self, coefficients: np.ndarray) -> np.ndarray:
        """Lengths [..., 1] of combinations [..., n]."""
        return self.norms(coefficients[..., None, :])

    def normalised(self, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Combinations of length 1, and the lengths [..., 1] they had; those of none stay."""
        length = self.norm(coefficients)
        return coefficients / np.where(length > 0, length, 1.0), length


def _iterated(
    span: _Span,
    mean: np.ndarray,
    inverse: np.ndarray,
    directed: np.ndarray,
    steps: int,
    tolerance: float,
) -> np.ndarray:
    """The mean after steps of the Karcher iteration, each vector of a batch stopping by itself."""
    units = inverse[..., None] * np.eye(inverse.shape[-1])
    for _ in range(steps):
        step = (directed[..., None] * _logs(span, mean[..., None, :], units)).sum(-2)
        size = span.norm(step)
        moving = size > tolerance
        if not moving.any():
            break
        stepped, _ = span.normalised(np.cos(size) * mean + _sinc(size) * step)
        mean = np.where(moving, stepped, mean)
    return mean


def _logs(span: _Span, mean: np.ndarray, units: np.ndarray) -> np.ndarray:
    """What leads from the mean to each unit vector along the sphere, [..., m, n]."""
    apart = span.norms(units - mean)[..., None]
    theta = 2 * np.arctan2(apart, span.norms(units + mean)[..., None])
    # Every way leads to the opposite point, so none is taken.
    opposite = math.pi - theta < SAME_DIRECTION
    logs = (units - mean + apart**2 / 2 * mean) / np.where(opposite, 1.0, _sinc(theta))
    return np.asarray(np.where(opposite, 0.0, logs))


def _sinc(x: np.ndarray) -> np.ndarray:
    small = np.abs(x) <= 1e-4
    return np.asarray(np.where(small, 1 - x * x / 6, np.sin(x) / np.where(small, 1.0, x)))
