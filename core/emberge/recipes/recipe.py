"""A recipe as it was read: steps with built components, and the place of each option."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge.component_parts import walk_parts
from emberge.contracts import Reference, Step
from emberge.errors import Problem, RecipeError
from emberge.wording import join_some


def find_references(value: Any) -> Iterator[Reference]:
    """Yield every reference in a component, however deep."""
    return (part for _, part in walk_parts(value, Reference) if isinstance(part, Reference))


@dataclass(frozen=True)
class RecipeStep:
    """One concrete step: an instance of a `foreach`, or a step without `foreach`.

    `id` is `members.ratio=0.2` for an instance of `members`, `group` is the id in the recipe, and `kind` is
    the component's full name (`train:train`). References inside `step` name concrete ids. `lines` maps an
    option's path (`sampler.0.ratio`) to `file:line`; `whole` is the step with these options, if
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
        """Ids of the steps whose output this step uses."""
        return tuple(dict.fromkeys(r.step for r in find_references(self.step) if r.step))


@dataclass(frozen=True)
class Recipe:
    """A recipe: its seed and its concrete steps, each after the steps that it needs."""

    seed: int
    steps: tuple[RecipeStep, ...]
    path: Path | None = None
    text: str = ""
    """The recipe's text, translated if another tool wrote the file at `path`."""
    overrides: tuple[str, ...] = ()
    """`--set` options that were applied to the text."""

    @property
    def kept_text(self) -> str:
        """The text as OUT keeps it, with the `--set` options as comments at its top."""
        notes = "".join(f"# run with --set {override}\n" for override in self.overrides)
        return notes + self.text

    @property
    def hash(self) -> str:
        """The SHA-256 of the recipe as OUT keeps it; "" if the recipe has no text."""
        return hashlib.sha256(self.kept_text.encode()).hexdigest() if self.text else ""

    @property
    def upload_places(self) -> tuple[str, ...]:
        """The places outside this machine to which a run sends data, as its steps name them."""
        return tuple(
            dict.fromkeys(p for step in self.steps for p in step.step.list_upload_places())
        )

    def require_upload_allowed(self, allowed: bool) -> None:
        """Refuse a recipe that uploads unless the user has `allowed` it.

        Raises:
            RecipeError: if a step uploads and `allowed` is False; has a problem for each such step.
        """
        uploading = (
            [] if allowed else [step for step in self.steps if step.step.list_upload_places()]
        )
        problems = [
            Problem(
                f"step '{step.id}' uploads to {join_some(step.step.list_upload_places(), 6)}; allow it with "
                "--allow-upload, or leave the uploading out",
                step.where,
            )
            for step in uploading
        ]
        if problems:
            raise RecipeError(problems)


def write_path_reference(path: os.PathLike[str]) -> str:
    """Return a path as a recipe names it: `./models/one`, as `models/one` would be an id of the hub."""
    text = os.fspath(path)
    is_clear = os.path.isabs(text) or text.startswith(".")
    return (text if is_clear else f"./{text}").replace("$", "$$")
