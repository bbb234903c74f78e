"""The scores of a run, by model and task or mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "FEW",
    "MEANS",
    "Comparison",
    "Interval",
    "Place",
    "Requirement",
    "ScoreCurve",
    "Scores",
    "Task",
]

# What means are taken over, in the order in which they are shown, and how a reader calls them.
MEANS = {
    "in": "in-domain mean",
    "out": "out-of-domain mean",
    "task": "mean over tasks",
    "type": "mean over task types",
}
# Up to so many tasks a reader takes in side by side.
FEW = 6

Interval = tuple[float, float]


@dataclass(frozen=True)
class Task:
    """A task that models were scored on; `domain` is "in", "out" or None where nobody said."""

    name: str
    kind: str = ""
    metric: str = ""
    languages: tuple[str, ...] = ()
    domain: str | None = None
    note: str = ""
    unit: str = ""
    units: int | None = None
    """How many queries, pairs or texts (`unit`) the score was computed from."""


@dataclass(frozen=True)
class Comparison:
    """How much more `model` scored than `reference` on a task, or in a mean of `MEANS`; shares.

    `apart` are the differences seed by seed, where two arms have the same seeds.
    """

    model: str
    reference: str
    on: str
    difference: float
    interval: Interval | None = None
    apart: tuple[float, ...] = ()

    @property
    def verdict(self) -> str:
        """What the interval allows to say: better, worse, no clear difference, or unknown."""
        if self.interval is None:
            return "unknown"
        low, high = self.interval
        if low > 0:
            return "better"
        return "worse" if high < 0 else "no clear difference"


@dataclass(frozen=True)
class Place:
    """One place of a curve: scores of the models made with the number `at`, by task or mean of `MEANS`."""

    at: float
    models: tuple[str, ...]
    values: Mapping[str, float]
    intervals: Mapping[str, Interval] = field(default_factory=dict)


@dataclass(frozen=True)
class ScoreCurve:
    """Scores over a number (`variable`) that the models of a step were made with."""

    name: str
    variable: str
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Requirement:
    """Something that the recipe required of the scores, and whether it held."""

    text: str
    met: bool


@dataclass(frozen=True)
class Scores:
    """Scores as shares, by model and task. `fingerprints` tell which weights of a name were scored.

    `costs` are in trainings on all rows. Where models were trained with several seeds, `pooled` is the same
    by arm: its models are the arms, with the `spreads` of their `members`.
    """

    fingerprints: Mapping[str, str]
    tasks: tuple[Task, ...]
    values: Mapping[str, Mapping[str, float]]
    intervals: Mapping[str, Mapping[str, Interval]] = field(default_factory=dict)
    means: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    comparisons: tuple[Comparison, ...] = ()
    requirements: tuple[Requirement, ...] = ()
    confidence: float = 0.95
    costs: Mapping[str, float] = field(default_factory=dict)
    spreads: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    members: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    curves: tuple[ScoreCurve, ...] = ()
    pooled: Scores | None = None

    @property
    def models(self) -> tuple[str, ...]:
        """The models in the order scored."""
        return tuple(self.fingerprints)

    @property
    def reference(self) -> str | None:
        """The model that others are compared with: the first."""
        return next(iter(self.fingerprints), None)

    def value(self, model: str, on: str) -> float | None:
        """A model's score on a task or in a mean of `MEANS`."""
        tasks, means = self.values.get(model, {}), self.means.get(model, {})
        return tasks.get(on, means.get(on)) if on not in MEANS else means.get(on)

    def interval(self, model: str, on: str) -> Interval | None:
        """The interval of that score, where it is known."""
        return self.intervals.get(model, {}).get(on)

    def spread(self, model: str, on: str) -> float | None:
        """The standard deviation of that score over seeds, where there are several."""
        return self.spreads.get(model, {}).get(on)

    def best(self, on: str) -> float | None:
        """The highest score of any model, None where there are not two to compare."""
        values = [v for m in self.models if (v := self.value(m, on)) is not None]
        return max(values) if len(values) > 1 else None

    @property
    def means_known(self) -> tuple[str, ...]:
        """The means that any model has, in order."""
        return tuple(m for m in MEANS if any(m in self.means.get(name, {}) for name in self.models))

    def columns(self) -> tuple[str, ...]:
        """Tasks, and the means that say more than one of the tasks does; of many tasks the means first."""
        tasks = tuple(task.name for task in self.tasks)
        means = tuple(m for m in self.means_known if self._says_more(m))
        return (*means, *tasks) if len(tasks) > FEW else (*tasks, *means)

    def _says_more(self, mean: str) -> bool:
        if mean == "type":
            return len({task.kind for task in self.tasks}) > 1
        if mean == "task":
            return len(self.tasks) > 1
        return sum(task.domain == mean for task in self.tasks) > 1

    def headlines(self) -> tuple[str, ...]:
        """What the run is judged by: in and out of domain, else the mean over tasks."""
        domains = tuple(mean for mean in self.means_known if mean in ("in", "out"))
        return domains or self.means_known[:1] or self.columns()[:1]

    def difference(self, model: str, on: str, reference: str | None = None) -> Comparison | None:
        """The comparison of a model with the reference on a task or mean, without interval if need be."""
        reference = reference or self.reference
        for found in self.comparisons:
            if (found.model, found.reference, found.on) == (model, reference, on):
                return found
        if reference is None or model == reference:
            return None
        mine, other = self.value(model, on), self.value(reference, on)
        if mine is None or other is None:
            return None
        return Comparison(model, reference, on, mine - other)
