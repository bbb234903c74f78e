"""The state of one run: results, failures and the log, shared by both ways to run its steps."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from emberge.component_parts import fields_in, to_plain
from emberge.contracts import Artifact, Machine, PerTensor, Reference
from emberge.data import DataEntry
from emberge.errors import EmbergeError, PluginError, RequirementError
from emberge.hashes import HashCache, UserHashes, stable_hash
from emberge.plugins import Plugins
from emberge.recipes.recipe import Recipe, RecipeStep
from emberge.recipes.references import Result, Targets
from emberge.recipes.run.run_log import RunLog
from emberge.recipes.run.run_step import ModuleLoader, result_of
from emberge.recipes.run.workspace import RunContext
from emberge.results import OutFolder, require_sound_result


class StepsFailedError(EmbergeError):
    """Several steps of a run failed; `errors` maps the step's id to its error."""

    def __init__(self, errors: Mapping[str, Exception]) -> None:
        self.errors = dict(errors)
        codes = {e.exit_code if isinstance(e, EmbergeError) else 1 for e in errors.values()}
        self.exit_code = codes.pop() if len(codes) == 1 else 1
        super().__init__("\n".join(f"step '{step}': {e}" for step, e in errors.items()))


class RunState:
    """One execution of a recipe, from the first step to the last."""

    def __init__(
        self,
        recipe: Recipe,
        place: OutFolder,
        plugins: Plugins,
        machine: Machine,
        loads: Iterable[str] = (),
    ) -> None:
        self.recipe, self.place, self.plugins = recipe, place, plugins
        self.modules = ModuleLoader(loads)
        self.hashes = HashCache(
            place.store / "hashes.json", place.path, UserHashes(), self.modules.start
        )
        self.log = RunLog(place, plugins, recipe.steps)
        self.context = RunContext(
            place=place,
            targets=Targets(plugins, self.hashes),
            listener=self.log.record,
            machine=machine,
            seed=recipe.seed,
            recipe=recipe.hash,
        )
        self.fingerprints: dict[str, str] = {}
        """The fingerprint of each finished step."""
        self.finished: dict[str, Artifact] = {}
        self.failed: dict[str, Exception] = {}
        self.blocked: set[str] = set()

    def is_blocked(self, step: RecipeStep) -> bool:
        """Return whether a step that `step` needs has failed; if so, record that `step` cannot run."""
        missing = [name for name in step.needs if name in self.failed or name in self.blocked]
        if missing:
            self.blocked.add(step.id)
            self.log.step_blocked(step.id, missing)
        return bool(missing)

    def find(self, step: RecipeStep) -> tuple[str, Artifact | None]:
        """Return the step's fingerprint, and the artifact of an earlier run with this fingerprint, if any.

        Raises:
            UnsoundResultError: if the result was changed after its step finished.
        """
        fingerprint = self._compute_fingerprint(step)
        artifact = result_of(self.place, step.id, fingerprint)
        if artifact is not None:
            require_sound_result(self.place.result(step.id, fingerprint), self.hashes)
            self.place.finish(step.id, fingerprint)
            self.log.step_skipped(step.id, self.place.result(step.id, fingerprint))
        return fingerprint, artifact

    def take(self, step: RecipeStep, fingerprint: str, artifact: Artifact) -> None:
        """Make a finished step's result available to the steps that name it."""
        folder = self.place.result(step.id, fingerprint)
        result = Result(folder, artifact, fingerprint, step.step.adapts())
        self.context.targets.add(step.id, result)
        self.finished[step.id] = artifact
        self.fingerprints[step.id] = fingerprint

    def fail(self, step: RecipeStep, error: Exception) -> None:
        """Record a step's error; the steps that do not need this step still run."""
        self.failed[step.id] = error
        self.log.step_failed(step.id, error)

    def raise_failures(self) -> None:
        """Raise the errors of steps, or of requirements that the finished steps did not meet.

        Raises:
            StepsFailedError: if several steps failed; a single error is raised as it is.
            RequirementError: if all steps are done and a requirement was not met.
        """
        if len(self.failed) > 1:
            raise StepsFailedError(self.failed)
        for step, error in self.failed.items():
            error.add_note(f"in step '{step}'")
            raise error
        unmet_requirements = [
            f"step '{step}': not met: {requirement}"
            for step, artifact in self.finished.items()
            for requirement in artifact.details.get("unmet", ())
        ]
        if unmet_requirements:
            raise RequirementError("\n".join(unmet_requirements))

    def end(self, error: BaseException | None) -> None:
        """Announce the end of the run with all results and failures, and close the log."""
        links = {step: self.place.link(step) for step in self.finished}
        tables = {
            step: links[step] / artifact.details["table"]
            for step, artifact in self.finished.items()
            if artifact.details.get("table")
        }
        details = {
            "results": links,
            "tables": tables,
            "failed": {step: str(e) for step, e in self.failed.items()},
            "blocked": sorted(self.blocked),
        }
        self.log.run_finished(error, details)
        self.log.close()

    def _compute_fingerprint(self, step: RecipeStep) -> str:
        return stable_hash(
            {
                "kind": step.kind,
                "step": plain(step.step, self.plugins, self.context.targets.fingerprint_value),
                "identity": step.step.identity(),
                "seed": self.recipe.seed,
            }
        )


def plain(value: Any, plugins: Plugins, refer: Callable[[Reference | DataEntry], Any]) -> Any:
    """Return a component and all its parts as JSON values.

    Each component includes its full name, its `revision` and, if it is of a bare file, the file's content.
    `refer` returns the value for a reference, and for the files of a data entry.

    Raises:
        PluginError: if an option has no stable form.
    """

    def record(item: Any, inner: Callable[[Any], Any]) -> Any:
        options = {name: inner(part) for name, part in fields_in(item)}
        if isinstance(item, DataEntry):
            options["path"] = inner(refer(item))
        return {**_name_component(item, plugins), "options": options}

    def leaf(item: Any) -> Any:
        return refer(item) if isinstance(item, Reference) else _convert_leaf(item)

    return to_plain(value, leaf, record, (Reference,))


def _name_component(item: Any, plugins: Plugins) -> dict[str, Any]:
    revision = getattr(item, "revision", 1)
    try:
        component = plugins.component_of(type(item))
    except PluginError:  # a part of a component's options
        return {"is": type(item).__name__, "revision": revision}
    content = {"content": component.content} if component.content else {}
    return {"is": component.full_name, "revision": revision, **content}


def _convert_leaf(item: Any) -> Any:
    if isinstance(item, PerTensor):
        return [[e.filter, e.value] for e in item.entries]
    if isinstance(item, enum.Enum):
        return item.value
    if isinstance(item, bool | str | int) or item is None:
        return item
    if isinstance(item, float):
        return int(item) if item.is_integer() else item
    if isinstance(item, range):
        return [item.start, item.stop, item.step]
    if isinstance(item, Path):
        return HashCache().of_tree(item) if item.exists() else item.name
    raise PluginError(
        f"an option holds a {type(item).__name__}, of which no stable hash can be made; "
        "options are numbers, text, lists, mappings, references and dataclasses of these"
    )
