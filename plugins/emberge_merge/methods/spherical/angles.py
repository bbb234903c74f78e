"""Angles and means of directions, from inner products alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

NO_DIRECTION = 1e-12  # a norm up to this points nowhere
SAME_DIRECTION = 1e-6  # an angle below this is walked in a straight line
# As near to opposite directions a great circle is any: its coefficients grow without bound.
OPPOSITE_ANGLE = 1e-3
# A mean of directions shorter than this has none: lengths are roots, so rounding alone may make 1e-8 of 0.
ANTIPODAL_LENGTH = 1e-7
# What rounding may make of the length of a combination that cancels, by the lengths of what it combines.
ROUNDING_LENGTH = 8 * float(np.sqrt(np.finfo(np.float64).eps))
_CANCELLED_WARNING = "directions cancel out; the weighted mean was taken"


@dataclass(frozen=True)
class Span:
    """Vectors given by Gram matrices [..., n, n]; a vector in their span is given by coefficients [..., n].

    `basis` has the inner products of a basis of the span. Where `has_differences` is true, the basis is the
    first vector and the differences of the others to it: their products keep the small angles between models
    that were tuned from one base. Elsewhere it is the vectors: their products are exact for vectors of very
    different lengths. `norms` are the vectors' lengths [..., n].
    """

    gram: np.ndarray
    has_differences: np.ndarray
    norms: np.ndarray

    @classmethod
    def of(cls, products: np.ndarray, differences: np.ndarray) -> Span:
        """Build a span from inner products of vectors, and those of the first and the differences to it."""
        squares = products.diagonal(axis1=-2, axis2=-1)
        squared_distance = differences.diagonal(axis1=-2, axis2=-1)[..., 1:].max(-1, initial=0.0)
        has_differences = squared_distance <= squares.min(-1) / 4
        span = cls(
            np.where(has_differences[..., None, None], differences, products),
            has_differences,
            np.sqrt(squares),
        )
        # Lengths that agree with the products to the last bit, as their differences count.
        norms = np.where(
            squares > NO_DIRECTION**2, span.compute_lengths(np.eye(squares.shape[-1])), 0.0
        )
        return cls(span.gram, has_differences, norms)

    @property
    def units(self) -> np.ndarray:
        """The vectors' directions [..., n, n], one per row; a zero vector stays zero."""
        has_direction = self.norms > NO_DIRECTION
        inverse = np.where(has_direction, 1 / np.where(has_direction, self.norms, 1.0), 1.0)
        return np.asarray(inverse[..., None] * np.eye(inverse.shape[-1]))

    def compute_lengths(self, coefficients: np.ndarray) -> np.ndarray:
        """Return the lengths [..., m] of combinations [..., m, n]."""
        leading = np.where(
            self.has_differences[..., None], coefficients.sum(-1), coefficients[..., 0]
        )
        later_factors = np.broadcast_to(
            coefficients[..., 1:], (*leading.shape, coefficients.shape[-1] - 1)
        )
        factors = np.concatenate([leading[..., None], later_factors], -1)
        squares = np.einsum("...mi,...ij,...mj->...m", factors, self.gram, factors)
        return np.asarray(np.sqrt(squares.clip(min=0.0)))

    def compute_length(self, coefficients: np.ndarray) -> np.ndarray:
        """Return the lengths [..., 1] of combinations [..., n]."""
        return self.compute_lengths(coefficients[..., None, :])

    def normalise(self, coefficients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return combinations scaled to length 1, and their lengths [..., 1]; zero vectors stay zero."""
        length = self.compute_length(coefficients)
        return coefficients / np.where(length > 0, length, 1.0), length


def compute_slerp(
    span: Span, t: float, linear_threshold: float | None = None
) -> tuple[np.ndarray, str]:
    """Return the factors [..., 2] of a and b for the point at share t of the great circle from a to b.

    The coefficients are (1 - t, t) if a vector has no direction, if both have the same or opposite
    directions, or if their cosine is beyond `linear_threshold`. A text is returned with them: a warning if
    directions are opposite, else "".
    """
    units = span.units
    have_direction = np.asarray((span.norms > NO_DIRECTION).all(-1, keepdims=True))
    ends = units[..., 0, :], units[..., 1, :]
    return _compute_circle_factors(span, ends, have_direction, t, linear_threshold)


def chain_slerps(span: Span, weights: np.ndarray) -> tuple[np.ndarray, str]:
    """Return coefficients [..., n] of slerps from the first vector to each next vector, and a warning or "".

    The step towards vector j is the share wⱼ / (w₁ + … + wⱼ), so that weights are shares of the result. No
    step is taken while the weights up to j add up to zero.
    """
    count = len(weights)
    factors = np.broadcast_to(np.eye(count)[0], span.norms.shape).copy()
    sums, warned = np.cumsum(weights), ""
    for j in range(1, count):
        t = float(weights[j] / sums[j]) if sums[j] else 0.0
        walked, length = span.normalise(factors)
        have_direction = (length > NO_DIRECTION) & (span.norms[..., j : j + 1] > NO_DIRECTION)
        ends = walked, span.units[..., j, :]
        shares, warning = _compute_circle_factors(span, ends, have_direction, t)
        factors = shares[..., :1] * factors + shares[..., 1:] * np.eye(count)[j]
        warned = warned or warning
    return factors, warned


def _compute_circle_factors(
    span: Span,
    ends: tuple[np.ndarray, np.ndarray],
    have_direction: np.ndarray,
    t: float,
    linear_threshold: float | None = None,
) -> tuple[np.ndarray, str]:
    """Return two vectors' factors and a warning; `have_direction` [..., 1] is True if both have one."""
    difference_length, sum_length = (
        span.compute_length(ends[0] - ends[1]),
        span.compute_length(ends[0] + ends[1]),
    )
    theta = 2 * np.arctan2(difference_length, sum_length)
    opposite = have_direction & (sum_length <= OPPOSITE_ANGLE)
    is_curved = have_direction & (theta >= SAME_DIRECTION) & ~opposite
    if linear_threshold is not None:
        is_curved = is_curved & (np.abs(1 - difference_length**2 / 2) <= linear_threshold)
    share = np.array([1 - t, t])
    factors = np.where(
        is_curved, np.sin(share * theta) / np.where(is_curved, np.sin(theta), 1.0), share
    )
    return factors, _CANCELLED_WARNING if opposite.any() else ""


def compute_mean_direction(
    span: Span, weights: np.ndarray, *, steps: int, tolerance: float = 0.0
) -> tuple[np.ndarray, str]:
    """Return coefficients [..., n] of the mean direction at the mean length, and a warning or "".

    It starts from the normalised weighted mean of directions and takes up to `steps` steps of the Karcher
    iteration, M ← exp_M(Σ αᵢ log_M(uᵢ)), until a step is shorter than `tolerance`. Vectors without a
    direction count only for the length. If there is no mean direction, the coefficients are those of the
    weighted mean.
    """
    shares = weights / weights.sum()
    units = span.units
    directed_weights = shares * (span.norms > NO_DIRECTION)
    total = directed_weights.sum(-1, keepdims=True)
    has_no_direction = np.abs(total) <= NO_DIRECTION
    directed_weights = directed_weights / np.where(has_no_direction, 1.0, total)
    mean, length = span.normalise((directed_weights[..., None] * units).sum(-2))
    cancelled = ~has_no_direction & (length <= ANTIPODAL_LENGTH)
    mean = _iterate_mean(span, mean, units, directed_weights, steps, tolerance)
    factors = np.where(
        has_no_direction | cancelled, shares, (span.norms @ shares)[..., None] * mean
    )
    return factors, _CANCELLED_WARNING if cancelled.any() else ""


def _iterate_mean(
    span: Span,
    mean: np.ndarray,
    units: np.ndarray,
    directed_weights: np.ndarray,
    steps: int,
    tolerance: float,
) -> np.ndarray:
    """Return the mean after steps of the Karcher iteration; each vector of a batch stops independently."""
    for _ in range(steps):
        step = (
            directed_weights[..., None] * _map_to_tangents(span, mean[..., None, :], units)
        ).sum(-2)
        size = span.compute_length(step)
        moving = size > tolerance
        if not moving.any():
            break
        stepped, _ = span.normalise(np.cos(size) * mean + _compute_sinc(size) * step)
        mean = np.where(moving, stepped, mean)
    return mean


def _map_to_tangents(span: Span, mean: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Return the logarithms of the unit vectors at the mean, [..., m, n]."""
    difference_lengths, sum_lengths = (
        span.compute_lengths(both)[..., None] for both in (units - mean, units + mean)
    )
    theta = 2 * np.arctan2(difference_lengths, sum_lengths)
    # Every way leads to the opposite point, so none is taken. A mean of directions that nearly cancel has
    # large coefficients, and what is opposite to it is so only up to their rounding.
    combined = np.abs(units + mean) @ span.norms[..., None]
    opposite = sum_lengths < np.maximum(SAME_DIRECTION, ROUNDING_LENGTH * combined)
    logs = (units - mean + difference_lengths**2 / 2 * mean) / np.where(
        opposite, 1.0, _compute_sinc(theta)
    )
    return np.asarray(np.where(opposite, 0.0, logs))


def _compute_sinc(x: np.ndarray) -> np.ndarray:
    is_small = np.abs(x) <= 1e-4
    return np.asarray(np.where(is_small, 1 - x * x / 6, np.sin(x) / np.where(is_small, 1.0, x)))
