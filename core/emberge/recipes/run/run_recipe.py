"""RunState a recipe: steps in order of need, finished ones skipped, interrupted ones continued."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge.contracts.launcher import Launcher
from emberge.contracts.reference import Artifact, ModelRef
from emberge.contracts.step import Machine, Rehearsal
from emberge.devices import find_machine
from emberge.errors import EmbergeError, RequirementError
from emberge.files.atomic import write_text
from emberge.files.hashes import HashCache, stable_hash
from emberge.files.locks import lock_folder
from emberge.plugins import Plugins
from emberge.recipes.folder.fingerprint import plain
from emberge.recipes.folder.provenance import kept_text, recipe_hash
from emberge.recipes.folder.results import Result, Results
from emberge.recipes.folder.run_folder import OutFolder
from emberge.recipes.recipe import Recipe, RecipeStep, references
from emberge.recipes.run.parallel import ParallelRun
from emberge.recipes.run.run_log import RunLog
from emberge.recipes.run.run_step import explain_disk_full, result_of, run_step
from emberge.recipes.run.workspace import RunContext, installed_readers

if TYPE_CHECKING:
    from emberge.recipes.run.rank_team import RankTeam

__all__ = ["RunState", "StepsFailedError", "run_recipe"]


class StepsFailedError(EmbergeError):
    """Several steps of a run failed; `errors` has each by the step's id."""

    def __init__(self, errors: Mapping[str, Exception]) -> None:
        self.errors = dict(errors)
        codes = {e.exit_code if isinstance(e, EmbergeError) else 1 for e in errors.values()}
        self.exit_code = codes.pop() if len(codes) == 1 else 1
        super().__init__("\n".join(f"step '{step}': {e}" for step, e in errors.items()))


def run_recipe(
    recipe: Recipe,
    out: Path,
    plugins: Plugins,
    *,
    machine: Machine | None = None,
    rehearsal: Rehearsal | None = None,
    quiet: bool = False,
    team: RankTeam | None = None,
    launcher: Launcher | None = None,
) -> Mapping[str, Path]:
    """RunState a recipe's steps into the folder `out`; the result of each step stands at `out/<id>`.

    A step whose result stands there under the same fingerprint is skipped, one that was interrupted goes
    on. When a step fails, those that do not need it still run. `machine` defaults to all of this machine;
    `quiet` asks reporters to print nothing. With a `team` this is the first of its ranks, and the others
    are called into the steps that every rank enters. A `launcher` runs steps side by side, each in a process
    of its own; without one they run one after another in this process.

    Raises:
        OutInUseError: when another run works in `out`.
        RequirementError: when all is done and a requirement of the recipe does not hold.
        StepsFailedError: when several steps failed; a single failure is raised as it is.
    """
    place = OutFolder(Path(out))
    place.prepare()
    with explain_disk_full(place), lock_folder(place.lock):
        _keep_recipe(recipe, place)
        run = RunState(recipe, place, plugins, machine or find_machine(), rehearsal)
        run.team, run.launcher = team, launcher
        return run.everything(quiet)


class RunState:
    """One execution of a recipe."""

    def __init__(
        self,
        recipe: Recipe,
        place: OutFolder,
        plugins: Plugins,
        machine: Machine,
        rehearsal: Rehearsal | None,
    ) -> None:
        self.recipe, self.place, self.plugins = recipe, place, plugins
        self.hashes = HashCache(place.store / "hashes.json", root=place.path)
        self.record = RunLog(place, plugins, recipe.steps)
        self.around = RunContext(
            place=place,
            results=Results(plugins, self.hashes),
            record=self.record,
            machine=machine,
            seed=recipe.seed,
            rehearsal=rehearsal,
            readers=installed_readers(plugins),
            recipe=recipe_hash(recipe),
        )
        self.team: RankTeam | None = None
        self.launcher: Launcher | None = None
        self.made: dict[str, str] = {}  # fingerprints of what is finished
        self.finished: dict[str, Artifact] = {}
        self.failed: dict[str, Exception] = {}
        self.blocked: set[str] = set()

    def everything(self, quiet: bool) -> Mapping[str, Path]:
        self._fetch_models()
        self.record.run_started(self.recipe.path, quiet)
        try:
            if self.launcher is not None:
                ParallelRun(self, self.launcher).everything()
            else:
                for step in self.recipe.steps:
                    self._one(step)
            self._raise()
        except BaseException as error:
            self._end(error)
            raise
        self._end(None)
        return {step.id: self.place.link(step.id) for step in self.recipe.steps}

    def _fetch_models(self) -> None:
        """Download what is to be downloaded before the run is shown; the step says what went wrong."""
        for step in self.recipe.steps:
            for reference in references(step.step):
                if isinstance(reference, ModelRef) and reference.step is None:
                    with contextlib.suppress(EmbergeError):
                        self.around.results.model(reference)

    def _one(self, step: RecipeStep) -> None:
        if self.is_blocked(step):
            return
        try:
            fingerprint, made = self.found(step)
            made = made or self._work(step, fingerprint)
        except Exception as error:
            self.fail(step, error)
        except BaseException:
            self.record.step_stopped(step.id)
            raise
        else:
            self.take(step, fingerprint, made)
        finally:
            self.hashes.save()

    def is_blocked(self, step: RecipeStep) -> bool:
        """Whether a step that this one needs has failed; then this one cannot run."""
        missing = [name for name in step.needs if name in self.failed or name in self.blocked]
        if missing:
            self.blocked.add(step.id)
            self.record.step_blocked(step.id, missing)
        return bool(missing)

    def found(self, step: RecipeStep) -> tuple[str, Artifact | None]:
        """The step's fingerprint, and what it left if it was finished under that before."""
        fingerprint = self._fingerprint(step)
        artifact = result_of(self.place, step.id, fingerprint)
        if artifact is not None:
            self.place.finish(step.id, fingerprint)
            self.record.step_skipped(step.id, self.place.result(step.id, fingerprint))
        return fingerprint, artifact

    def take(self, step: RecipeStep, fingerprint: str, artifact: Artifact) -> None:
        """Let later steps have what this one left."""
        folder = self.place.result(step.id, fingerprint)
        result = Result(folder, artifact, fingerprint, step.step.adapts())
        self.around.results.add(step.id, result)
        self.finished[step.id] = artifact
        self.made[step.id] = fingerprint

    def fail(self, step: RecipeStep, error: Exception) -> None:
        """Remember why a step failed; those that do not need it still run."""
        self.failed[step.id] = error
        self.record.step_failed(step.id, error)

    def _work(self, step: RecipeStep, fingerprint: str) -> Artifact:
        team = self.team if step.step.every_rank else None
        around = self.around
        if team is not None:
            around = dataclasses.replace(around, machine=team.machine(around.machine))
        self.record.step_started(step, fingerprint)
        made = run_step(step, fingerprint, around, self._called(team, step, fingerprint))
        self.place.finish(step.id, fingerprint)
        self.record.step_finished(step.id, made.folder, made.artifact, made.seconds)
        return made.artifact

    def _called(
        self, team: RankTeam | None, step: RecipeStep, fingerprint: str
    ) -> contextlib.AbstractContextManager[None]:
        """The other ranks are in the step too, if it is one for them."""
        if team is None:
            return contextlib.nullcontext()
        return team.together(
            {
                "step": step.id,
                "fingerprint": fingerprint,
                "finished": self.made,
                "recipe": self.around.recipe,
                "out": str(self.place.path.absolute()),
                "rehearsal": self._rehearsal(),
            }
        )

    def _rehearsal(self) -> dict[str, Any] | None:
        rehearsal = self.around.rehearsal
        return dataclasses.asdict(rehearsal) if rehearsal else None

    def _fingerprint(self, step: RecipeStep) -> str:
        return stable_hash(
            {
                "kind": step.kind,
                "step": plain(step.step, self.plugins, self.around.results.stands_for),
                "identity": step.step.identity(),
                "seed": self.recipe.seed,
                "rehearsal": self._rehearsal(),
            }
        )

    def _raise(self) -> None:
        if len(self.failed) > 1:
            raise StepsFailedError(self.failed)
        for step, error in self.failed.items():
            error.add_note(f"in step '{step}'")
            raise error
        unmet = [
            f"step '{step}': {one}"
            for step, artifact in self.finished.items()
            for one in artifact.details.get("unmet", ())
        ]
        if unmet:
            raise RequirementError("\n".join(unmet))

    def _end(self, error: BaseException | None) -> None:
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
        self.record.run_finished(error, details)
        self.record.close()


def _keep_recipe(recipe: Recipe, place: OutFolder) -> None:
    if recipe.text:
        write_text(place.path / "recipe.yaml", kept_text(recipe))
