"""What a recipe is once it has been read: steps with built components, and where each option stands."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge.contracts.reference import Reference
from emberge.contracts.step import Step

__all__ = ["Recipe", "RecipeStep", "references"]


@dataclass(frozen=True)
class RecipeStep:
    """One concrete step: an instance of a `foreach`, or a step as it stands.

    `id` is `members.ratio=0.2` for an instance of `members`, `group` the id in the recipe; `kind` the full
    name of the component (`train:train`). References inside `step` name concrete ids. `lines` maps an
    option's path (`sampler.0.bagging.ratio`) to `file:line`; `whole` is the step with these options, where
    `step` is a part of it.
    """

    id: str
    group: str
    kind: str
    step: Step
    variables: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""
    lines: Mapping[str, str] = field(default_factory=dict)
    whole: Step | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        """Ids of the steps whose output this one uses."""
        return tuple(dict.fromkeys(r.step for r in references(self.step) if r.step))


@dataclass(frozen=True)
class Recipe:
    """A recipe: its seed and its concrete steps, each after those it needs."""

    seed: int
    steps: tuple[RecipeStep, ...]
    path: Path | None = None
    text: str = ""
    """In our words, where another tool wrote the file at `path`."""
    overrides: tuple[str, ...] = ()
    """`--set` options that were laid over the text."""


def references(value: Any) -> Iterator[Reference]:
    """Every reference inside a component, however deep."""
    if isinstance(value, Reference):
        yield value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for option in dataclasses.fields(value):
            yield from references(getattr(value, option.name))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from references(item)
