"""The choice of the best of several models by their values, which are scores or losses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from emberge import TaskInfo, TaskScore
from emberge.evaluating import parts_of_group

# Points are decimal fractions, whose differences in binary miss by some 1e-14.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Ranked:
    """Model in its rank: `value` and `mean` are its own, `behind` and `mean_behind` points to the best ones.

    A point is a hundredth, of a score as of a loss. `first` marks those that were chosen for their rank,
    `near` those whose mean is near enough to the best one.
    """

    name: str
    value: float
    mean: float
    behind: float
    mean_behind: float
    first: bool
    near: bool

    @property
    def chosen(self) -> bool:
        """Flag of a model that was chosen, for its rank or its mean."""
        return self.first or self.near


@dataclass(frozen=True)
class RankedModels:
    """All models from the best to the worst."""

    ranking: tuple[Ranked, ...]

    @property
    def best(self) -> Ranked:
        """Model of the first rank."""
        return self.ranking[0]

    @property
    def second(self) -> Ranked | None:
        """Model that the best one is compared with, None where there is none."""
        return self.ranking[1] if len(self.ranking) > 1 else None

    @property
    def chosen(self) -> tuple[Ranked, ...]:
        """Models that were chosen, from the best on."""
        return tuple(one for one in self.ranking if one.chosen)


def choose(
    values: Mapping[str, float],
    means: Mapping[str, float],
    *,
    top: int,
    within: float | None,
    less: bool = False,
) -> RankedModels:
    """Choose the first `top` models by value, and those whose mean is at most `within` points from the best.

    Of equal values the one named first is ahead. With `less` lower values are better. What is no number is
    behind everything that is.
    """
    own, mean = _better_is_more(values, less), _better_is_more(means, less)
    order = sorted(values, key=own.__getitem__, reverse=True)
    best, best_mean = own[order[0]], max(mean.values())
    ranking = []
    for place, name in enumerate(order):
        apart = _points(best_mean, mean[name])
        ranking.append(
            Ranked(
                name=name,
                value=values[name],
                mean=means[name],
                behind=_points(best, own[name]),
                mean_behind=apart,
                first=place < top,
                near=within is not None and apart <= within + _ROUNDING,
            )
        )
    return RankedModels(tuple(ranking))


def _better_is_more(values: Mapping[str, float], less: bool) -> dict[str, float]:
    return {
        name: (-value if less else value) if math.isfinite(value) else -math.inf
        for name, value in values.items()
    }


def _points(best: float, value: float) -> float:
    """Return how many points a value is below the best."""
    return 100 * (best - value) if math.isfinite(value) else math.inf


def value_of(tasks: Sequence[TaskInfo], scores: Mapping[str, TaskScore], group: str) -> float:
    """Return a model's mean over a group of tasks: over their kinds for "type", else over the tasks."""
    means = [
        sum(scores[task.name].score for task in part) / len(part)
        for part in parts_of_group(tasks, group)
    ]
    return sum(means) / len(means)
