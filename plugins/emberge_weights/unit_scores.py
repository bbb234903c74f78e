"""Scores of weightings by unit: by query, or by a pair's contribution to a rank correlation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from emberge_weights.judged_sets import Statistic

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class UnitScores:
    """Values of weightings on the units of one set, [weightings, units].

    The score of a weighting is the mean of its values, or their rank correlation with `gold`.
    """

    name: str
    statistic: Statistic
    unit: str
    values: NDArray[np.float32]
    gold: Array | None = None

    def __len__(self) -> int:
        return int(self.values.shape[1])

    def select(self, weightings: Indices | Sequence[int]) -> UnitScores:
        """Return the scores of a subset of the weightings."""
        return UnitScores(
            self.name, self.statistic, self.unit, self.values[np.asarray(weightings)], self.gold
        )

    def compute_contributions(self, units: Indices | None = None) -> Array:
        """Return numbers [weightings, units] whose mean over the units is the score on them.

        The contributions to a rank correlation are its influence function (the infinitesimal jackknife:
        Efron, 1982). So the variance of contributions gives the standard error of a score, and the variance
        of their differences that of a difference.
        """
        values = self.values if units is None else self.values[:, units]
        if self.statistic == "mean":
            return values.astype(np.float64)
        assert self.gold is not None
        return _split_correlation(values, self.gold if units is None else self.gold[units])


def list_contributions(scores: Sequence[UnitScores]) -> list[Array]:
    """Return the contributions of all units of each set."""
    return [set_scores.compute_contributions() for set_scores in scores]


def compute_mean_score(contributions: Sequence[Array]) -> Array:
    """Return each weighting's mean score over sets, from the contributions of each set's units."""
    means: Array = np.mean([part.mean(1) for part in contributions], axis=0)
    return means


def compute_standard_error(contributions: Sequence[Array]) -> Array:
    """Return the standard error of `compute_mean_score`, treating the units of all sets as a sample."""
    parts = [part.var(1) / max(1, part.shape[1] - 1) for part in contributions]
    error: Array = np.sqrt(np.sum(parts, axis=0)) / len(parts)
    return error


def _standardise_ranks(values: NDArray[np.floating]) -> Array:
    ranks = rankdata(values, axis=-1)
    ranks -= ranks.mean(-1, keepdims=True)
    spread = ranks.std(-1, keepdims=True)
    standard: Array = np.divide(ranks, spread, out=np.zeros_like(ranks), where=spread > 0)
    return standard


def _split_correlation(values: NDArray[np.float32], gold: Array) -> Array:
    x, y = _standardise_ranks(values), _standardise_ranks(gold)[None]
    products = x * y
    correlation = products.mean(1, keepdims=True)
    return np.asarray(products - correlation * (x * x + y * y) / 2 + correlation)
