"""Trials: how well scores are foretold, and the choice beside a sweep of real merges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from emberge_weights.scores.unit_scores import mean_score
from emberge_weights.search.choice import compare
from emberge_weights.search.real_merges import RealMerges
from emberge_weights.search.search import Search

__all__ = ["trials_of"]


def trials_of(found: Search, real: RealMerges, chosen: int) -> dict[str, Any] | None:
    """Return what the trials show, as JSON; None without trials.

    That is the rank correlation of foretold and real scores in the data, the largest error of what is
    foretold there, and on the tests the real scores of equal weights (always the first merge), of the
    choice, of the trial that was best in the data, and of the one that is best on the tests themselves.
    """
    trials = range(real.anchors, len(real.places))
    if not trials:
        return None
    foretold, means = found.means[list(real.places)], real.means
    some = list(trials)
    return {
        "count": len(trials),
        "rank_correlation": float(spearmanr(foretold[some], means[some]).statistic),
        "largest_error": float(np.abs(foretold[some] - means[some]).max()),
        "tests": _on_tests(real, list(real.places).index(chosen), some) if real.tests else None,
    }


def _on_tests(real: RealMerges, row: int, trials: Sequence[int]) -> dict[str, Any]:
    means = mean_score([one.contributions() for one in real.tests])
    swept = trials[int(real.means[trials].argmax())]
    best = trials[int(means[trials].argmax())]
    return {
        "equal": float(means[0]),
        "chosen": float(means[row]),
        "swept": float(means[swept]),
        "best": float(means[best]),
        "over_swept": compare(real.tests, [swept, row]).plain(),
        "over_best": compare(real.tests, [best, row]).plain(),
        "units": sum(map(len, real.tests)),
    }
