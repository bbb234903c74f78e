"""The worth of each part of a mixture, from scores with it and without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from emberge_weights.unit_scores import mean_score, standard_error

Array = NDArray[np.float64]
Verdict = Literal["helps", "harms", "cannot be told"]


@dataclass(frozen=True)
class Worth:
    """Gain in score with a part of a mixture over the mixture without it, with its interval."""

    difference: float
    low: float
    high: float

    @property
    def verdict(self) -> Verdict:
        """`helps` or `harms` if the whole interval is on one side of zero."""
        if self.low > 0:
            return "helps"
        return "harms" if self.high < 0 else "cannot be told"

    def plain(self) -> dict[str, float]:
        """Return the difference and its interval, as JSON."""
        return asdict(self)


def leave_one_out(shares: Sequence[float]) -> Array:
    """Return weightings [1 + parts, parts]: the mixture, and the mixture without each part; rows sum to 1.

    Raises:
        ValueError: if a part has the whole mixture, so that nothing is left without it.
    """
    mixture = np.asarray(shares, np.float64)
    rows = [mixture / mixture.sum()]
    for part in range(len(mixture)):
        rest = mixture.copy()
        rest[part] = 0
        if not rest.sum() > 0:
            raise ValueError("a mixture of one part cannot be compared with the rest")
        rows.append(rest / rest.sum())
    return np.stack(rows)


def extrapolate(weightings: Array, scale: float) -> Array:
    """Return weightings of the parts and, last, their base, which is moved `scale` times as far."""
    scaled = scale * weightings
    return np.column_stack([scaled, 1 - scaled.sum(1)])


def find_worth(differences: Sequence[Array]) -> list[Worth]:
    """Return each part's worth, from a set's contributions [trainings, parts, units] for every set.

    The error has two sources: the units of the sets, and the trainings. The spread of trainings is pooled
    over the parts, whose trainings are equally long, and the interval follows Student's t with the degrees
    of freedom of this spread. All intervals together hold with 95 % (Bonferroni).
    """
    trainings, parts, _ = differences[0].shape
    by_training = np.stack(
        [mean_score([one[draw] for one in differences]) for draw in range(trainings)]
    )
    means = by_training.mean(0)
    of_units = standard_error([one.mean(0) for one in differences])
    degrees = parts * (trainings - 1)
    of_trainings = float(by_training.var(0, ddof=1).mean()) / trainings
    quantile = float(stats.t.ppf(1 - 0.05 / (2 * parts), degrees))
    half = quantile * np.sqrt(of_units**2 + of_trainings)
    return [
        Worth(float(mean), float(mean - width), float(mean + width))
        for mean, width in zip(means, half, strict=True)
    ]
