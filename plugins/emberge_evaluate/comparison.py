"""Intervals of scores, means and differences from a bootstrap of test examples and the spread of seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from emberge import TaskInfo, TaskScore, Units, make_seed

from emberge_evaluate.columns import Arm
from emberge_evaluate.requirements import Demand, Requirement, describe_demand, describe_forgetting
from emberge_evaluate.scores import ColumnKey, Comparison, Estimate, Interval, Verdict
from emberge_evaluate.task_groups import MEAN_BY_GROUP, average_scores, list_group_parts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

# Draws of every bootstrap.
RESAMPLES = 4000


@dataclass(frozen=True, slots=True, eq=False)
class SampledNumber:
    """Score or difference, with what its interval is made of: draws of test examples, and the error of seeds.

    `draws` [resamples] is None if neither test examples nor tasks can be drawn. `error` is the standard error
    over seeds, with `freedom` degrees of freedom; both are 0 without several seeds. A difference and its
    opposite have errors of opposite signs, and so opposite intervals. `by_seed` are the differences for each
    seed, if both arms have the same seeds or one is a single model.
    """

    value: float
    draws: Array | None
    error: float = 0.0
    freedom: float = 0.0
    by_seed: Mapping[str, float] | None = None


class ArmComparison:
    """Comparison of models, and of arms of several seeds, on the same bootstrap draws of every task.

    Units (queries, pairs, texts) are drawn within each task, and scores are averaged over tasks. For a mean
    over several tasks without units (clustering), the tasks are drawn. The few seeds are not drawn: their
    spread enters by Student's t. If two arms have the same seeds, they are compared seed by seed (a paired
    test), otherwise as two samples (Welch, 1947). A single model is an arm too. A `group` of tasks is
    "all", "type", "in", "out", "elsewhere", a kind of task such as "kind:sts", or the name of a task.
    """

    def __init__(
        self,
        tasks: Sequence[TaskInfo],
        scores: Mapping[str, Mapping[str, TaskScore]],
        *,
        seed: int,
        arms: Sequence[Arm] = (),
        resamples: int = RESAMPLES,
    ) -> None:
        self.tasks = tasks
        self.less_is_better = any(task.less_is_better for task in tasks)
        self.scores = scores
        self.models = {name: row for row, name in enumerate(scores)}
        self.arms = {name: Arm.of(ColumnKey(name), {"": name}) for name in scores}
        self.arms |= {arm.name: arm for arm in arms}
        self.arm_of = {model: arm.name for arm in arms for model in arm.columns.values()}
        self._resamples = resamples
        self._seed = seed
        self._samples: dict[str, Array | None] = {}
        self._draws_by_group: dict[str, Array | None] = {}

    def estimate(self, arm: str, group: str) -> Estimate:
        """Return an arm's score with its interval: the mean of its models (a single model is also an arm)."""
        points, samples = self._score_arm(arm, group)
        draws = None if samples is None else samples.mean(0)
        score = SampledNumber(float(points.mean()), draws, *_estimate_seed_error(points))
        spread = float(points.std(ddof=1)) if len(points) > 1 else None
        return Estimate(score.value, spread, self._compute_interval(score))

    def compare(self, arm: str, other: str, group: str) -> Comparison:
        """Return the difference, `arm` minus `other`, with its two-sided interval."""
        found = self._subtract(arm, other, group)
        mean, interval = MEAN_BY_GROUP.get(group, group), self._compute_interval(found)
        numbers = (found.value, interval, found.by_seed)
        return Comparison(arm, other, mean, *numbers, less_is_better=self.less_is_better)

    def judge(
        self, requirement: Requirement, demand: Demand, arm: str, other: str, group: str
    ) -> Verdict:
        """Return the verdict, as numbers and text, on one requirement for a group of tasks."""
        from emberge_evaluate.bootstrap import compute_lower_bound

        found = self._subtract(arm, other, group)
        sign = -1 if self.less_is_better else 1
        bound = compute_lower_bound(sign * self._add_noise(found))
        is_forgetting = demand == "forgetting"
        points = (requirement.forgetting or 0.0) if is_forgetting else requirement.margin
        margin = points / 100
        verdict = Verdict(
            text="",
            met=bool(bound > margin if demand == "better_than" else bound >= -margin),
            model=arm,
            other=other,
            demand=demand,
            tasks=group if is_forgetting else requirement.tasks,
            margin=points,
            difference=sign * found.value,
            lower_bound=bound,
        )
        names = self._name_arm(arm), self._name_arm(other)
        if is_forgetting:
            return replace(verdict, text=describe_forgetting(verdict, *names))
        return replace(
            verdict, text=describe_demand(verdict, *names, less_is_better=self.less_is_better)
        )

    def _name_arm(self, arm: str) -> str:
        count = len(self.arms[arm].columns)
        return arm if count == 1 else f"{arm} ({count} seeds)"

    def _score_arm(self, arm: str, group: str) -> tuple[Array, Array | None]:
        """Return (scores of the arm's models, their scores on every draw); the latter is None without draws.

        If a model is evaluated under several seeds, it counts once, with its mean.
        """
        import numpy as np

        columns_by_draw = self.arms[arm].columns_by_draw.values()
        points = np.array(
            [
                np.mean([average_scores(self.tasks, self.scores[m], group) for m in names])
                for names in columns_by_draw
            ]
        )
        samples = self._draw_means(group)
        if samples is None:
            return points, None
        rows = [[self.models[model] for model in names] for names in columns_by_draw]
        return points, np.stack([samples[several].mean(0) for several in rows])

    def _subtract(self, arm: str, other: str, group: str) -> SampledNumber:
        """Return the difference `arm` minus `other`: by seed if both have the same, or one is one model."""
        points, samples = self._score_arm(arm, group)
        other_points, other_samples = self._score_arm(other, group)
        draws = None
        if samples is not None and other_samples is not None:
            draws = samples.mean(0) - other_samples.mean(0)
        seeds, other_seeds = (list(self.arms[name].columns_by_draw) for name in (arm, other))
        if set(seeds) == set(other_seeds):
            other_points = other_points[[other_seeds.index(seed) for seed in seeds]]
        if set(seeds) == set(other_seeds) or 1 in (len(seeds), len(other_seeds)):
            gains = points - other_points
            seeds = max(seeds, other_seeds, key=len)
            by_seed = dict(zip(seeds, map(float, gains), strict=True)) if len(seeds) > 1 else None
            found = SampledNumber(float(gains.mean()), draws, *_estimate_seed_error(gains), by_seed)
        else:
            errors = _estimate_seed_error(points), _estimate_seed_error(other_points)
            difference = float(points.mean() - other_points.mean())
            found = SampledNumber(difference, draws, *_estimate_welch_error(*errors))
        order = list(self.arms)
        return (
            replace(found, error=-found.error) if order.index(arm) < order.index(other) else found
        )

    def _compute_interval(self, number: SampledNumber) -> Interval | None:
        from emberge_evaluate.bootstrap import compute_interval

        if number.draws is None and not number.freedom:
            return None
        return compute_interval(self._add_noise(number))

    def _add_noise(self, number: SampledNumber) -> Array:
        """Return the resampled means of a number, with simulated noise of other seeds added."""
        import numpy as np

        draws = number.draws
        draws = np.full(self._resamples, number.value) if draws is None else draws
        if not number.freedom or not number.error:
            return draws
        rng = np.random.default_rng(make_seed(self._seed, "seeds"))
        noisy: Array = draws + number.error * rng.standard_t(number.freedom, self._resamples)
        return noisy

    def _draw_means(self, group: str) -> Array | None:
        """Return means on every draw, [models, resamples]; None if neither units nor tasks can be drawn."""
        if group not in self._draws_by_group:
            parts = list_group_parts(self.tasks, group)
            varies = any(
                len(part) > 1 or self._resample_task(part[0]) is not None for part in parts
            )
            means = [self._mean_over_tasks(part) for part in parts] if varies else []
            self._draws_by_group[group] = (
                sum(means[1:], start=means[0]) / len(means) if means else None
            )
        return self._draws_by_group[group]

    def _mean_over_tasks(self, tasks: Sequence[TaskInfo]) -> Array:
        """Return means over tasks on every draw, [models, resamples]."""
        import numpy as np

        from emberge_evaluate.bootstrap import resample_tasks

        total = np.zeros((len(self.models), self._resamples))
        means = {}
        for task in tasks:
            samples = self._resample_task(task)
            if samples is None:
                means[task.name] = [self.scores[model][task.name].score for model in self.models]
            else:
                total += samples
        if means:
            task_means = resample_tasks(
                np.array(list(means.values())).T,
                resamples=self._resamples,
                seed=self._seed,
                name=f"tasks {' '.join(means)}",
            )
            total += len(means) * task_means
        return total / len(tasks)

    def _resample_task(self, task: TaskInfo) -> Array | None:
        """Return one task's scores on every draw, [models, resamples]; None without comparable units."""
        from emberge_evaluate.bootstrap import resample

        if task.name not in self._samples:
            units = [self.scores[model][task.name].units for model in self.models]
            comparable = [u for u in units if u is not None and _have_equal_units(u, units[0])]
            self._samples[task.name] = (
                resample(comparable, resamples=self._resamples, seed=self._seed, name=task.name)
                if len(comparable) == len(units)
                else None
            )
        return self._samples[task.name]


def _estimate_seed_error(points: Array) -> tuple[float, float]:
    """Return (standard error of the mean over seeds, degrees of freedom); (0, 0) for one model."""
    if len(points) < 2:
        return 0.0, 0.0
    return float(points.std(ddof=1)) / math.sqrt(len(points)), len(points) - 1.0


def _estimate_welch_error(
    first: tuple[float, float], second: tuple[float, float]
) -> tuple[float, float]:
    """Return (standard error, degrees of freedom) of a difference of two means (Welch, 1947)."""
    variances = [(error**2, degrees) for error, degrees in (first, second) if degrees]
    total = sum(variance for variance, _ in variances)
    if not variances or not total:
        return 0.0, max((degrees for _, degrees in variances), default=0.0)
    degrees_of_freedom = total**2 / sum(variance**2 / degrees for variance, degrees in variances)
    return math.sqrt(total), degrees_of_freedom


def _have_equal_units(units: Units, first: Units | None) -> bool:
    """Return whether two models have the same units."""
    return (
        first is not None
        and len(units.values) == len(first.values)
        and (units.gold or []) == (first.gold or [])
    )
