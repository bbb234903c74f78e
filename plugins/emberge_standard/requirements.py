"""What a recipe asks of its models' scores, and whether the scores show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from emberge import ModelRef, RecipeError, TaskInfo, TaskScore, Units, suggest

from emberge_standard.score_table import select

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["GROUP_OF", "Comparison", "Judge", "Requirement", "tasks_of"]

# How a recipe says which tasks, and what that is in a result.
GROUP_OF = {"all": "all", "ind": "in", "ood": "out"}
Demand = Literal["not_worse_than", "better_than"]


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """A claim about one model that must hold, or the run ends with exit code 3.

    `tasks` is all, ind (in domain), ood (out of domain) or the name of a task. `margin` is in points (score
    × 100). By a paired bootstrap, with this `confidence` the difference (model − other) must be at least
    −margin for `not_worse_than`, and more than margin for `better_than`.
    """

    model: ModelRef
    not_worse_than: tuple[ModelRef, ...] = ()
    better_than: tuple[ModelRef, ...] = ()
    tasks: str = "all"
    margin: float = 0.0
    confidence: float = 0.95

    def demands(self) -> Iterator[tuple[Demand, ModelRef]]:
        """Each single comparison that is asked for."""
        for other in self.not_worse_than:
            yield "not_worse_than", other
        for other in self.better_than:
            yield "better_than", other

    def references(self) -> Iterator[ModelRef]:
        """Every model that it is about."""
        yield self.model
        yield from (other for _, other in self.demands())

    def faults(self) -> Iterator[str]:
        """What cannot be meant."""
        if not (self.not_worse_than or self.better_than):
            yield "a requirement needs not_worse_than or better_than"
        if not 0.5 <= self.confidence < 1:
            yield f"a confidence of {self.confidence} is no share from 0.5 to below 1"
        if self.margin < 0:
            yield f"a margin of {self.margin} points is below 0"


def tasks_of(requirement: Requirement, tasks: Sequence[TaskInfo]) -> list[TaskInfo]:
    """The tasks that a requirement is about.

    Raises:
        RecipeError: when there is none.
    """
    word = requirement.tasks
    chosen = select(tasks, GROUP_OF.get(word, word))
    if chosen:
        return chosen
    if word in GROUP_OF:
        raise RecipeError(
            f"a requirement is about '{word}' tasks, but none of the tasks is "
            f"{'in' if word == 'ind' else 'out of'} domain; say `domain` in the catalogue"
        )
    hint = suggest(word, [*GROUP_OF, *(task.name for task in tasks)])
    raise RecipeError(f"a requirement is about '{word}', which is no task here{hint}")


@dataclass(frozen=True)
class Comparison:
    """A difference between two models, as shares, and how sure it is."""

    model: str
    other: str
    tasks: str
    difference: float
    low: float
    high: float
    confidence: float


class Judge:
    """Compares models on the same bootstrap draws of every task.

    Units (queries, pairs, texts) are drawn within each task and averaged over tasks; tasks that have none
    (clustering) are themselves drawn.
    """

    def __init__(
        self,
        tasks: Sequence[TaskInfo],
        scores: Mapping[str, Mapping[str, TaskScore]],
        *,
        resamples: int,
        seed: int,
    ) -> None:
        self.tasks = tasks
        self.scores = scores
        self.models = {name: row for row, name in enumerate(scores)}
        self._resamples = resamples
        self._seed = seed
        self._samples: dict[str, NDArray[np.float64] | None] = {}

    def interval(self, model: str, task: TaskInfo, confidence: float) -> tuple[float, float] | None:
        """A model's score on a task: the bounds between which it lies; None for a task without units."""
        from emberge_standard.bootstrap import interval

        samples = self._task(task)
        return None if samples is None else interval(samples[self.models[model]], confidence)

    def compare(
        self, model: str, other: str, tasks: Sequence[TaskInfo], label: str, confidence: float
    ) -> Comparison:
        """The difference of the means over tasks, with its two-sided interval."""
        from emberge_standard.bootstrap import interval

        low, high = interval(self._differences(model, other, tasks), confidence)
        return Comparison(
            model, other, label, self._difference(model, other, tasks), low, high, confidence
        )

    def judge(
        self, requirement: Requirement, demand: Demand, model: str, other: str
    ) -> dict[str, Any]:
        """Whether one demand holds, in numbers and in words."""
        from emberge_standard.bootstrap import lower_bound

        tasks = tasks_of(requirement, self.tasks)
        difference = self._difference(model, other, tasks)
        samples = self._differences(model, other, tasks)
        bound = lower_bound(samples, requirement.confidence)
        margin = requirement.margin / 100
        met = bound >= -margin if demand == "not_worse_than" else bound > margin
        by = f" by more than {requirement.margin:g} points" if requirement.margin else ""
        text = (
            f"{model} {demand.replace('_', ' ')} {other}{by} on {requirement.tasks}: "
            f"difference {100 * difference:+.2f} points, lower bound {100 * bound:+.2f} "
            f"at {requirement.confidence:.0%}"
        )
        return {
            "model": model,
            "other": other,
            "demand": demand,
            "tasks": requirement.tasks,
            "margin": requirement.margin,
            "confidence": requirement.confidence,
            "difference": difference,
            "lower_bound": bound,
            "met": bool(met),
            "text": text,
        }

    def _difference(self, model: str, other: str, tasks: Sequence[TaskInfo]) -> float:
        mine, theirs = self.scores[model], self.scores[other]
        return sum(mine[t.name].score - theirs[t.name].score for t in tasks) / len(tasks)

    def _differences(
        self, model: str, other: str, tasks: Sequence[TaskInfo]
    ) -> NDArray[np.float64]:
        means = self._means(tasks)
        difference: NDArray[np.float64] = means[self.models[model]] - means[self.models[other]]
        return difference

    def _means(self, tasks: Sequence[TaskInfo]) -> NDArray[np.float64]:
        """Means over tasks on every draw, [models, resamples]."""
        import numpy as np

        from emberge_standard.bootstrap import unitless_mean

        total = np.zeros((len(self.models), self._resamples))
        whole = []
        for task in tasks:
            samples = self._task(task)
            if samples is None:
                whole.append([self.scores[model][task.name].score for model in self.models])
            else:
                total += samples
        if whole:
            drawn = unitless_mean(
                np.array(whole).T, resamples=self._resamples, seed=self._seed, name="tasks"
            )
            total += len(whole) * drawn
        return total / len(tasks)

    def _task(self, task: TaskInfo) -> NDArray[np.float64] | None:
        """Scores of one task on every draw, [models, resamples]; None without comparable units."""
        from emberge_standard.bootstrap import resample

        if task.name not in self._samples:
            units = [self.scores[model][task.name].units for model in self.models]
            comparable = [u for u in units if u is not None and _alike(u, units[0])]
            self._samples[task.name] = (
                resample(comparable, resamples=self._resamples, seed=self._seed, name=task.name)
                if len(comparable) == len(units)
                else None
            )
        return self._samples[task.name]


def _alike(units: Units, first: Units | None) -> bool:
    """Whether the units of two models are the same ones."""
    return (
        first is not None
        and len(units.values) == len(first.values)
        and (units.gold or []) == (first.gold or [])
    )
