"""Steps that were given rows of keys, the steps that depend on them, and the recipe without them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge.component_parts import parts_of
from emberge.contracts import Reference
from emberge.data import DataEntry, load_datasets
from emberge.errors import EmbergeError
from emberge.hashes import HashCache, UserHashes
from emberge.plugins import Plugins
from emberge.recipes.checks.status import StepStatus, status
from emberge.recipes.checks.verify import read_record
from emberge.recipes.recipe import Recipe, RecipeStep, references
from emberge.recipes.references import Targets
from emberge.recipes.run.row_record import read_row_record
from emberge.recipes.run.workspace import build_installed_readers
from emberge.results import OutFolder
from emberge.wording import count_noun


@dataclass(frozen=True)
class TouchedStep:
    """A step of an OUT, the number of its rows that have the keys, and the seconds that it took."""

    id: str
    kind: str
    rows: int
    seconds: float | None = None


@dataclass(frozen=True)
class ForgettingPlan:
    """The steps that forgetting keys runs again, and those that keep their results."""

    keys: int
    """Number of keys that were asked for."""
    found: int
    """Number of them that have rows in any data."""
    given: tuple[TouchedStep, ...]
    """Steps whose own data have rows of the keys."""
    following: tuple[TouchedStep, ...]
    """Steps that depend on these."""
    untouched: tuple[TouchedStep, ...]

    @property
    def again(self) -> tuple[TouchedStep, ...]:
        """All steps that run again."""
        return self.given + self.following

    def lines(self) -> Iterator[str]:
        """Yield the plan as lines for the terminal."""
        keys = count_noun(self.keys, "key")
        yield f"the data of this run have rows of {self.found} of {keys}"
        width = max((len(step.id) for step in (*self.again, *self.untouched)), default=0)
        for words, steps in (
            ("was given {rows:,} of their rows, runs again", self.given),
            ("depends on these, runs again", self.following),
            ("stays as it is", self.untouched),
        ):
            for step in steps:
                seconds = "" if step.seconds is None else f"  {step.seconds:,.0f} s"
                yield f"  {step.id:<{width}}  {words.format(rows=step.rows)}{seconds}".rstrip()
        again, kept = _add_seconds(self.again), _add_seconds(self.untouched)
        if again and again + kept:
            share = again / (again + kept)
            yield f"steps that took {again:,.0f} of {again + kept:,.0f} s run again ({share:.0%})"


def _add_seconds(steps: Sequence[TouchedStep]) -> float:
    return sum(step.seconds or 0.0 for step in steps)


def plan_forgetting(
    recipe: Recipe, out: Path, plugins: Plugins, digests: Collection[bytes]
) -> ForgettingPlan:
    """Return the steps of a recipe, run into `out`, that were given rows of the keys with these hashes.

    `recipe` does not leave out what the OUT has forgotten. A step whose result has a record of rows without
    the keys is untouched. A step whose data another step makes is among those that depend on it.

    Raises:
        DataError: if data are missing or cannot be understood.
        NoRunError: if no recipe was run in `out`.
    """
    statuses = {step.id: step for step in status(out).steps}
    counter = _RowCounter(out, plugins, frozenset(digests))
    given: list[TouchedStep] = []
    following: list[TouchedStep] = []
    untouched: list[TouchedStep] = []
    again: set[str] = set()
    for step in recipe.steps:
        rows = counter.count(step) if _may_have_seen(out, step, digests) else 0
        touched = _describe(step, rows, statuses.get(step.id))
        depends = not again.isdisjoint(step.needs)
        (given if rows else following if depends else untouched).append(touched)
        if rows or depends:
            again.add(step.id)
    found = len(counter.found)
    return ForgettingPlan(len(digests), found, tuple(given), tuple(following), tuple(untouched))


def _may_have_seen(out: Path, step: RecipeStep, digests: Collection[bytes]) -> bool:
    """Return whether the step's result has a record of rows with any of the keys, or no record."""
    folder = OutFolder(out).link(step.id)
    recorded_keys = read_row_record(folder, read_record(folder) or {})
    return recorded_keys is None or any(digest in recorded_keys for digest in digests)


def _describe(step: RecipeStep, rows: int, status: StepStatus | None) -> TouchedStep:
    return TouchedStep(step.id, step.kind, rows, status.seconds if status is not None else None)


class _RowCounter:
    """The counter of the rows of a step's own data that have one of the `wanted` keys."""

    def __init__(self, out: Path, plugins: Plugins, wanted: frozenset[bytes]) -> None:
        place = OutFolder(out)
        hashes = HashCache(place.store / "hashes.json", place.path, UserHashes())
        self.store, self.wanted = place.store, wanted
        self.targets = Targets(plugins, hashes, place.store)
        self.readers = build_installed_readers(plugins)
        self.found: set[bytes] = set()
        self._counts: dict[DataEntry, int] = {}

    def count(self, step: RecipeStep) -> int:
        return sum(
            self._count_entry(entry)
            for _, entry in parts_of(step.step, DataEntry, Reference)
            if isinstance(entry, DataEntry) and (entry.path is None or entry.path.step is None)
        )

    def _count_entry(self, entry: DataEntry) -> int:
        if entry not in self._counts:
            datasets = load_datasets(
                [entry], readers=self.readers, resolve=self.targets.data, store=self.store
            )
            digests = [d for dataset in datasets for d in dataset.key_hashes() if d in self.wanted]
            self.found.update(digests)
            self._counts[entry] = len(digests)
        return self._counts[entry]


def without_steps(recipe: Recipe, steps: Collection[str]) -> Recipe:
    """Return the recipe without the `steps`, and lists of models without their results.

    A step is left out too if it names such a step outside a list, or if nothing is left of a list. What
    remains is the merge of the other members, with all that is made of it.
    """
    left_out = set(steps)
    kept_steps: list[RecipeStep] = []
    for step in recipe.steps:
        smaller = None if step.id in left_out else _leave_out(step.step, left_out)
        if smaller is None:
            left_out.add(step.id)
        else:
            kept_steps.append(dataclasses.replace(step, step=smaller))
    return dataclasses.replace(recipe, steps=tuple(kept_steps))


def _leave_out(component: Any, steps: Collection[str]) -> Any | None:
    """Return a step whose lists name none of the `steps`; None if it needs one of them."""
    changes: dict[str, Any] = {}
    for option in dataclasses.fields(component):
        value = getattr(component, option.name)
        if not _names_any(value, steps):
            continue
        rest = [v for v in value if not _names_any(v, steps)] if isinstance(value, tuple) else []
        if not rest:
            return None
        changes[option.name] = tuple(rest)
    try:
        return dataclasses.replace(component, **changes) if changes else component
    except (ValueError, EmbergeError):
        return None


def _names_any(value: Any, steps: Collection[str]) -> bool:
    return any(reference.step in steps for reference in references(value))
