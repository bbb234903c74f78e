"""The scores of a run, read back from `scores.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge import DataError

__all__ = ["MEANS", "Comparison", "Requirement", "Scores", "Task", "read_scores"]

FILE = "scores.json"
# What means are taken over, in the order in which they are shown, and how a reader calls them.
MEANS = {
    "in": "in-domain mean",
    "out": "out-of-domain mean",
    "task": "mean over tasks",
    "type": "mean over task types",
}
# Up to so many tasks a reader takes in side by side.
FEW = 6

# How an evaluation names the groups of tasks that it compares models on.
_GROUPS = {"all": "task"}

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
    """How much more `model` scored than `reference` on a task, or in a mean of `MEANS`; shares."""

    model: str
    reference: str
    on: str
    difference: float
    interval: Interval | None = None

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
class Requirement:
    """Something that the recipe required of the scores, and whether it held."""

    text: str
    met: bool


@dataclass(frozen=True)
class Scores:
    """Scores as shares, by model and task. `fingerprints` tell which weights of a name were scored."""

    fingerprints: Mapping[str, str]
    tasks: tuple[Task, ...]
    values: Mapping[str, Mapping[str, float]]
    intervals: Mapping[str, Mapping[str, Interval]] = field(default_factory=dict)
    means: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    comparisons: tuple[Comparison, ...] = ()
    requirements: tuple[Requirement, ...] = ()
    confidence: float = 0.95

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


def read_scores(folder: Path) -> Scores:
    """The scores of an evaluation's folder.

    Raises:
        DataError: when the file is missing or is not what an evaluation writes.
    """
    path = folder / FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return _scores(found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: these are no scores that can be read ({error!r}); run the evaluation again"
        ) from error


def _scores(found: Mapping[str, Any]) -> Scores:
    values = {
        model: {task: float(v) for task, v in row.items() if _finite(v)}
        for model, row in found["scores"].items()
    }
    return Scores(
        fingerprints={m["name"]: m.get("fingerprint", "") for m in found["models"]},
        tasks=tuple(_task(task) for task in found["tasks"]),
        values=values,
        intervals=_by_model(found.get("intervals")),
        means={
            model: {mean: float(v) for mean, v in row.items() if _finite(v)}
            for model, row in (found.get("means") or {}).items()
        },
        comparisons=tuple(_comparison(c) for c in found.get("comparisons") or ()),
        requirements=tuple(_requirement(r) for r in found.get("requirements") or ()),
        confidence=next((float(c["confidence"]) for c in found.get("comparisons") or ()), 0.95),
    )


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _task(found: Mapping[str, Any]) -> Task:
    return Task(
        name=found["name"],
        kind=found.get("kind") or "",
        metric=found.get("metric") or "",
        languages=tuple(found.get("languages") or ()),
        domain=found.get("domain"),
        note=found.get("note") or "",
        unit=found.get("unit") or "",
        units=found.get("units"),
    )


def _interval(found: Any) -> Interval | None:
    if not isinstance(found, Sequence) or len(found) != 2 or not all(map(_finite, found)):
        return None
    return float(found[0]), float(found[1])


def _by_model(found: Mapping[str, Any] | None) -> Mapping[str, Mapping[str, Interval]]:
    return {
        model: {on: pair for on, v in row.items() if (pair := _interval(v)) is not None}
        for model, row in (found or {}).items()
    }


def _comparison(found: Mapping[str, Any]) -> Comparison:
    return Comparison(
        model=found["model"],
        reference=found["other"],
        on=_GROUPS.get(found["tasks"], found["tasks"]),
        difference=float(found["difference"]),
        interval=_interval([found.get("low"), found.get("high")]),
    )


def _requirement(found: Mapping[str, Any]) -> Requirement:
    return Requirement(str(found["text"]), bool(found["met"]))
