"""The call of one step: all that another process needs to run it, as one line of JSON."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge.contracts import Machine, Rehearsal
from emberge.errors import RecipeError
from emberge.hashes import HashCache, UserHashes
from emberge.plugins import Plugins, load_plugins
from emberge.recipes.parse.parse import parse_recipe
from emberge.recipes.recipe import Recipe, RecipeStep
from emberge.recipes.references import Result, Targets
from emberge.recipes.run.run_log import StepListener
from emberge.recipes.run.workspace import RunContext
from emberge.results import OutFolder, read_artifact


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCall:
    """One step of a recipe, and all that is needed to read it again in another process.

    `finished` are the fingerprints of the results in `out`; `events` is the file in the step's work folder
    that the process writes its events to. `machine` is its share of the machine that it runs on.
    """

    out: str
    step: str
    fingerprint: str
    finished: Mapping[str, str]
    events: str
    text: str
    path: str | None
    overrides: tuple[str, ...]
    plugins: tuple[str, ...]
    block: tuple[str, ...]
    rehearsal: Mapping[str, int] | None = None
    machine: Mapping[str, Any] | None = None

    @classmethod
    def into(cls, recipe: Recipe, context: RunContext, **call: Any) -> StepCall:
        """Build the call of a step from its id, `fingerprint`, the `finished` steps and `events`."""
        plugins = context.targets.plugins
        return cls(
            out=str(context.place.path.absolute()),
            text=recipe.text,
            path=str(recipe.path) if recipe.path else None,
            overrides=recipe.overrides,
            plugins=tuple(os.path.abspath(file) for file in plugins.files),
            block=plugins.blocked,
            rehearsal=dataclasses.asdict(context.rehearsal) if context.rehearsal else None,
            **call,
        )

    @classmethod
    def read(cls, line: bytes) -> StepCall:
        """Read a call from its line of JSON."""
        given = json.loads(line)
        for name in ("overrides", "plugins", "block"):
            given[name] = tuple(given[name])
        return cls(**given)

    def plain(self) -> dict[str, Any]:
        """Return the call as JSON values."""
        return dataclasses.asdict(self)

    def load(self) -> tuple[Recipe, RecipeStep, Plugins]:
        """Return the recipe, the step, and the plugins that its components come from.

        Raises:
            RecipeError: when the recipe reads differently here.
        """
        plugins = load_plugins([Path(file) for file in self.plugins], block=self.block)
        path = Path(self.path) if self.path else None
        recipe = parse_recipe(self.text, plugins, path=path, overrides=self.overrides)
        found = [step for step in recipe.steps if step.id == self.step]
        if not found:
            raise RecipeError(f"the recipe has no step '{self.step}' here; are all plugins alike?")
        return recipe, found[0], plugins

    def context(self, recipe: Recipe, plugins: Plugins, listener: StepListener) -> RunContext:
        """Build the step's RunContext: folder, results, machine and seed."""
        machine = dict(self.machine or {})
        place = OutFolder(Path(self.out))
        return RunContext(
            place=place,
            targets=finished_targets(recipe, place, plugins, self.finished),
            listener=listener,
            machine=Machine(**{**machine, "devices": tuple(machine.get("devices", ("cpu",)))}),
            seed=recipe.seed,
            rehearsal=Rehearsal(**self.rehearsal) if self.rehearsal else None,
            recipe=recipe.hash,
        )


def finished_targets(
    recipe: Recipe, place: OutFolder, plugins: Plugins, finished: Mapping[str, str]
) -> Targets:
    """Return the references' targets, finished steps among them, for a process that runs only one step."""
    hashes = HashCache(place.store / "hashes.json", place.path, UserHashes())
    targets = Targets(plugins, hashes)
    adapts = {each.id: each.step.adapts() for each in recipe.steps}
    for name, fingerprint in finished.items():
        folder = place.result(name, fingerprint)
        artifact = read_artifact(folder)
        if artifact is None:
            continue  # not visible on this machine; a step that needs it reports that
        targets.add(name, Result(folder, artifact, fingerprint, adapts[name]))
    return targets
