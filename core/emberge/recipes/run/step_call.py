"""What a process is told that is to run one step of a recipe."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge.contracts.step import Machine, Rehearsal
from emberge.errors import RecipeError
from emberge.files.hashes import HashCache
from emberge.plugins import Plugins, load_plugins
from emberge.recipes.folder.provenance import recipe_hash
from emberge.recipes.folder.results import Result, Results
from emberge.recipes.folder.run_folder import OutFolder, read_artifact
from emberge.recipes.parse.parse import parse_recipe
from emberge.recipes.recipe import Recipe, RecipeStep
from emberge.recipes.run.run_log import StepListener
from emberge.recipes.run.workspace import RunContext, installed_readers

__all__ = ["StepCall", "results_seen"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCall:
    """One step of a recipe, and all that is needed to read it again in another process.

    `finished` are the fingerprints of the results in `out`; `events` is the file in the step's work folder
    that the process tells what happens. `machine` is its share of the machine that it runs on.
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
    def into(cls, recipe: Recipe, around: RunContext, **call: Any) -> StepCall:
        """The call into a step of a recipe: its id, `fingerprint`, what is `finished`, and `events`."""
        plugins = around.results.plugins
        return cls(
            out=str(around.place.path.absolute()),
            text=recipe.text,
            path=str(recipe.path) if recipe.path else None,
            overrides=recipe.overrides,
            plugins=tuple(os.path.abspath(file) for file in plugins.files),
            block=plugins.blocked,
            rehearsal=dataclasses.asdict(around.rehearsal) if around.rehearsal else None,
            **call,
        )

    @classmethod
    def read(cls, line: bytes) -> StepCall:
        """The call of a line of JSON."""
        given = json.loads(line)
        for name in ("overrides", "plugins", "block"):
            given[name] = tuple(given[name])
        return cls(**given)

    def plain(self) -> dict[str, Any]:
        """As values of JSON."""
        return dataclasses.asdict(self)

    def load(self) -> tuple[Recipe, RecipeStep, Plugins]:
        """The recipe, the step, and the plugins that they are made of.

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

    def around(self, recipe: Recipe, plugins: Plugins, record: StepListener) -> RunContext:
        """What the step has around it."""
        machine = dict(self.machine or {})
        place = OutFolder(Path(self.out))
        return RunContext(
            place=place,
            results=results_seen(recipe, place, plugins, self.finished),
            record=record,
            machine=Machine(**{**machine, "devices": tuple(machine.get("devices", ("cpu",)))}),
            seed=recipe.seed,
            rehearsal=Rehearsal(**self.rehearsal) if self.rehearsal else None,
            readers=installed_readers(plugins),
            recipe=recipe_hash(recipe),
        )


def results_seen(
    recipe: Recipe, place: OutFolder, plugins: Plugins, finished: Mapping[str, str]
) -> Results:
    """What references lead to, for a process that runs no steps but the one that it was called into."""
    results = Results(plugins, HashCache(place.store / "hashes.json", root=place.path))
    adapts = {each.id: each.step.adapts() for each in recipe.steps}
    for name, fingerprint in finished.items():
        folder = place.result(name, fingerprint)
        artifact = read_artifact(folder)
        if artifact is None:
            continue  # not seen from this machine; a step that needs it will say so
        results.add(name, Result(folder, artifact, fingerprint, adapts[name]))
    return results
