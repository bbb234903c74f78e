"""Paired bootstrap: uncertainty of scores and differences from the sampling of test examples.

The units of a task (its test examples) are drawn with replacement. All models are scored on the same draw, so
differences between models are paired (Efron and Tibshirani, 1993, chapter 16; for retrieval Sakai, 2006).
Rank correlation and average precision are not means of units: they are recomputed on each draw from the
counts of drawn units.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from emberge import Units, make_seed
from numpy.typing import NDArray

Array = NDArray[np.float64]
CONFIDENCE = 0.95  # of all intervals and bounds
_CELLS_AT_ONCE = 4_000_000  # draws × units in memory at once: about 32 MB an array


def resample(
    models: Sequence[Units], *, resamples: int, seed: int, name: str
) -> NDArray[np.float64]:
    """Return one task's statistic on `resamples` draws of its units, the same draws for every model.

    `name` (the name of the task) and `seed` decide the draws. Each group of units is drawn separately.

    Returns: [models, resamples].
    """
    groups = _group_units(models[0])
    total = np.zeros((len(models), resamples))
    rng = np.random.default_rng(make_seed(seed, name))
    for group in groups:
        measures = [_Measure(units, group) for units in models]
        start = 0
        for counts in _draw_counts(rng, group.size, resamples):
            for row, measure in enumerate(measures):
                total[row, start : start + len(counts)] += measure(counts)
            start += len(counts)
    return total / len(groups)


def compute_statistic(units: Units) -> float:
    """Return the statistic on the original units, without resampling."""
    groups = _group_units(units)
    values = [_Measure(units, group)(np.ones((1, group.size)))[0] for group in groups]
    return float(np.mean(values))


def resample_tasks(scores: Array, *, resamples: int, seed: int, name: str) -> NDArray[np.float64]:
    """Return mean scores over resampled tasks, for tasks without units; `scores` is [models, tasks].

    Returns: [models, resamples].
    """
    rng = np.random.default_rng(make_seed(seed, name))
    tasks = scores.shape[1]
    counts = np.concatenate(list(_draw_counts(rng, tasks, resamples)))
    means: NDArray[np.float64] = scores @ counts.T / tasks
    return means


def compute_interval(samples: Array) -> tuple[float, float]:
    """Return the two-sided percentile interval of bootstrap samples [resamples]."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(samples, [tail, 1 - tail])
    return float(low), float(high)


def compute_lower_bound(samples: Array) -> float:
    """Return the one-sided lower percentile bound of bootstrap samples."""
    return float(np.quantile(samples, 1 - CONFIDENCE))


def _group_units(units: Units) -> list[NDArray[np.intp]]:
    if units.groups is None:
        return [np.arange(len(units.values))]
    labels = np.asarray(units.groups)
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]


def _draw_counts(rng: np.random.Generator, units: int, resamples: int) -> Iterator[Array]:
    """Yield the number of times each unit was drawn, [draws, units] per batch, `resamples` draws in total."""
    step = max(1, _CELLS_AT_ONCE // units)
    for start in range(0, resamples, step):
        draws = min(step, resamples - start)
        drawn_units = rng.integers(0, units, size=(draws, units))
        drawn_units += np.arange(draws)[:, None] * units
        yield (
            np.bincount(drawn_units.ravel(), minlength=draws * units)
            .reshape(draws, units)
            .astype(float)
        )


class _Measure:
    """Statistic of one model on one group of units, computed from the counts of drawn units."""

    def __init__(self, units: Units, group: NDArray[np.intp]) -> None:
        self.kind = units.statistic
        self.values = np.asarray(units.values, dtype=np.float64)[group]
        if self.kind == "mean":
            return
        if units.gold is None:
            raise ValueError(f"units of statistic '{self.kind}' need gold values")
        self.gold = np.asarray(units.gold, dtype=np.float64)[group]
        if self.kind == "ratio":
            return
        if self.kind == "macro_f1":
            self.classes = np.union1d(self.values, self.gold)
        elif self.kind == "spearman":
            self.ranks = (_Ranks(self.values), _Ranks(self.gold))
        else:
            self.order = np.argsort(-self.values, kind="stable")
            self.last = _find_last_ties(self.values[self.order])
            self.gold = self.gold[self.order]

    def __call__(self, counts: Array) -> Array:
        if self.kind == "mean":
            mean: Array = counts @ self.values / counts.sum(1)
            return mean
        if self.kind == "ratio":
            # If a draw has only units of weight 0, it has no ratio, so the ratio of all units is used.
            weights = counts @ self.gold
            micro_ratio = self.values.sum() / self.gold.sum()
            return np.where(
                weights > 0, counts @ self.values / np.maximum(weights, 1e-300), micro_ratio
            )
        if self.kind == "spearman":
            return _correlate_draws(counts, *(ranks(counts) for ranks in self.ranks))
        if self.kind == "macro_f1":
            return self._compute_macro_f1(counts)
        return self._average_precision(counts)

    def _compute_macro_f1(self, counts: Array) -> Array:
        """Return the mean F1, 2 · right / (drawn + predicted), over classes that were drawn or predicted."""
        total, class_count = np.zeros(len(counts)), np.zeros(len(counts))
        for label in self.classes:
            gold, predicted = (side == label for side in (self.gold, self.values))
            right = counts @ (gold & predicted)
            drawn_or_predicted = counts @ (gold.astype(float) + predicted)
            total += np.divide(
                2 * right,
                drawn_or_predicted,
                out=np.zeros_like(drawn_or_predicted),
                where=drawn_or_predicted > 0,
            )
            class_count += drawn_or_predicted > 0
        mean: Array = total / class_count
        return mean

    def _average_precision(self, counts: Array) -> Array:
        """Return Σ (recall_k − recall_{k−1}) · precision_k over distinct values, highest first."""
        ordered = counts[:, self.order]
        drawn_counts = np.cumsum(ordered, axis=1)[:, self.last]
        hits = np.cumsum(ordered * self.gold, axis=1)[:, self.last]
        precision = hits / np.maximum(drawn_counts, 1)
        gains = np.diff(hits, axis=1, prepend=0.0)
        positives = hits[:, -1]
        average: Array = (gains * precision).sum(1) / np.maximum(positives, 1)
        return average


class _Ranks:
    """Ranks of fixed values on bootstrap draws, with ties averaged, from the counts of each value."""

    def __init__(self, values: Array) -> None:
        self.order = np.argsort(values, kind="stable")
        ordered = values[self.order]
        self.last = _find_last_ties(ordered)
        self.tie = np.concatenate([[0], np.cumsum(np.diff(ordered) > 0)])
        self.inverse = np.argsort(self.order, kind="stable")

    def __call__(self, counts: Array) -> Array:
        """Return ranks from 0.5 up, [draws, units]; the rank of a unit that was not drawn is meaningless."""
        counts_up_to = np.cumsum(counts[:, self.order], axis=1)[:, self.last]
        counts_before = np.concatenate([np.zeros((len(counts), 1)), counts_up_to[:, :-1]], axis=1)
        middle = (counts_up_to + counts_before) / 2
        ranks: Array = middle[:, self.tie[self.inverse]]
        return ranks


def _find_last_ties(ordered: Array) -> NDArray[np.intp]:
    """Return the last position of each run of equal values."""
    return np.append(np.flatnonzero(np.diff(ordered) != 0), len(ordered) - 1)


def _correlate_draws(counts: Array, x: Array, y: Array) -> Array:
    """Return Pearson's correlation of x and y [draws, units], weighted by counts; 0 where one is constant."""
    total = counts.sum(1, keepdims=True)
    x = x - (counts * x).sum(1, keepdims=True) / total
    y = y - (counts * y).sum(1, keepdims=True) / total
    weighted = counts * x
    covariance = (weighted * y).sum(1)
    spread = np.sqrt((weighted * x).sum(1) * (counts * y * y).sum(1))
    correlation: Array = np.divide(
        covariance, spread, out=np.zeros_like(covariance), where=spread > 0
    )
    return correlation
