"""The run of a recipe: it skips finished steps, continues interrupted steps, and runs the others."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from emberge.contracts import (
    Artifact,
    Launcher,
    Machine,
    ModelRef,
    ResultEvent,
    RunFinished,
    RunStarted,
    StepFailed,
    StepFinished,
    StepSkipped,
    StepStarted,
)
from emberge.devices import find_machine
from emberge.errors import EmbergeError, RequirementError
from emberge.files import FileLock, find_user_cache, write_text
from emberge.hashes import HashCache
from emberge.interpreter import set_torch_defaults
from emberge.options import read_component
from emberge.plugins import Plugins, load_plugins
from emberge.recipes.fingerprints import compute_fingerprint
from emberge.recipes.parse.parse import convert_to_recipe
from emberge.recipes.preflight import CheckReport, check_recipe
from emberge.recipes.recipe import Recipe, RecipeStep, find_references
from emberge.recipes.run.run_log import RunLog
from emberge.recipes.run.step_result import StepResult
from emberge.recipes.run.step_run import (
    RunContext,
    explain_disk_full,
    find_finished_artifact,
    import_modules,
    run_step,
)
from emberge.recipes.targets import FinishedStep, Targets
from emberge.results import OutFolder, require_sound_result


def run_recipe(
    recipe: Recipe | Mapping[str, Any] | str | os.PathLike[str],
    out: Path | str,
    plugins: Plugins | None = None,
    *,
    machine: Machine | None = None,
    checked: CheckReport | None = None,
    executor: Executor | str | None = None,
    allow_upload: bool = False,
    quiet: bool = False,
) -> dict[str, StepResult]:
    """Run a recipe's steps into the folder `out` and return each step's result by its id.

    `recipe` is Python data (`{"steps": {id: {kind: options}}}`), a file, or the name of a shipped recipe; it
    is read and checked first, and warnings of the check are given as Python warnings. A `Recipe`, or a recipe
    with the report `checked` of `check_recipe`, is not checked; steps use the plans of the report. `plugins`
    defaults to all that are installed.

    A step that an earlier run finished under the same fingerprint is skipped; an interrupted step continues.
    If a step fails, the steps that do not need it still run. `machine` defaults to all of this machine;
    `quiet` asks reporters to print nothing. The `executor` may be a launcher, or the name of one (`"local"`),
    which runs steps in parallel, each in a separate process; without an executor, steps run one after
    another in this process. Steps that upload need `allow_upload`.

    Raises:
        RecipeError: before any work, if the recipe has problems, or a step uploads and `allow_upload` is
            False.
        OutInUseError: if another run works in `out`.
        RequirementError: if all steps are done and a requirement of the recipe is not met.
        StepsFailedError: if several steps failed; a single error is raised as it is.
    """
    set_torch_defaults()
    plugins = plugins or load_plugins()
    out_folder = OutFolder(Path(out))
    needs_check = checked is None and not isinstance(recipe, Recipe)
    recipe = convert_to_recipe(recipe, plugins)
    if needs_check:
        checked = check_recipe(recipe, plugins)
        checked.raise_errors()
        for problem in checked.of("warning"):
            warnings.warn(str(problem), stacklevel=2)
    recipe.require_upload_allowed(allow_upload)
    if isinstance(executor, str):
        executor = read_component(executor, Launcher, plugins, "launcher")
    out_folder.require_own(recipe.kept_text, [step.id for step in recipe.steps])
    out_folder.prepare()
    with explain_disk_full(out_folder), FileLock(out_folder.lock).lock():
        out_folder.clear_torn()
        if recipe.text:
            write_text(out_folder.path / "recipe.yaml", recipe.kept_text)
        plans = checked.plans if checked is not None else {}
        run = RecipeRun(recipe, out_folder, plugins, machine or find_machine(), plans)
        run.execute(executor or InThisProcess(), quiet=quiet)
    return {step.id: StepResult(step.id, out_folder.locate_link(step.id)) for step in recipe.steps}


class StepsFailedError(EmbergeError):
    """Several steps of a run failed; `errors` maps the step's id to its error."""

    def __init__(self, errors: Mapping[str, Exception]) -> None:
        self.errors = dict(errors)
        codes = {e.exit_code if isinstance(e, EmbergeError) else 1 for e in errors.values()}
        self.exit_code = codes.pop() if len(codes) == 1 else 1
        super().__init__("\n".join(f"step '{step}': {e}" for step, e in errors.items()))


class Executor(Protocol):
    """The way in which a run's steps are executed: in this process, as ranks, or by a launcher."""

    def run_steps(self, run: RecipeRun) -> None:
        """Run every step that can run; errors of steps are recorded in `run`."""


class InThisProcess:
    """The executor that runs one step after another in this process."""

    def run_steps(self, run: RecipeRun) -> None:
        """Run every step that can run, in order."""
        for step in run.recipe.steps:
            if run.note_if_blocked(step):
                continue
            try:
                fingerprint = compute_fingerprint(step, run.recipe.seed, run.context.targets)
                if not run.reuse_result(step, fingerprint):
                    run.start(step, fingerprint)
                    run.wait_for_imports()
                    run.finish(step, fingerprint, self.run_one_step(run, step, fingerprint))
            except Exception as error:  # of any class, as a step is a plugin's code
                run.fail(step, error)
            except BaseException:
                run.log.note_stopped(step.id)
                raise
            finally:
                run.hashes.save()

    def run_one_step(self, run: RecipeRun, step: RecipeStep, fingerprint: str) -> StepFinished:
        """Run a step, publish its result, and return the event that says so."""
        return run_step(step, fingerprint, run.context)


class RecipeRun:
    """One execution of a recipe: its log, its results, and the steps that failed or are blocked."""

    def __init__(
        self,
        recipe: Recipe,
        out_folder: OutFolder,
        plugins: Plugins,
        machine: Machine,
        plans: Mapping[str, Any],
    ) -> None:
        self.recipe, self.out_folder = recipe, out_folder
        loads = [name for step in recipe.steps for name in step.step.loads]
        self._imports = threading.Thread(
            target=import_modules, args=(loads,), name="import", daemon=True
        )
        self._import_lock = threading.Lock()
        self.hashes = HashCache(find_user_cache(), self._start_imports)
        self.log = RunLog(out_folder, plugins, recipe.steps)
        self.context = RunContext(
            out_folder=out_folder,
            targets=Targets(plugins, self.hashes),
            record=self.log.record,
            machine=machine,
            recipe=recipe,
            plans=plans,
        )
        self.fingerprints: dict[str, str] = {}
        """The fingerprint of each finished step."""
        self.finished: dict[str, Artifact] = {}
        self.failed: dict[str, Exception] = {}
        self.blocked: set[str] = set()

    def _start_imports(self) -> None:
        """Start to import what the steps need, while large inputs are hashed; from any thread."""
        with self._import_lock:  # two calls of `start` at once start the thread twice
            if self._imports.ident is None:
                self._imports.start()

    def wait_for_imports(self) -> None:
        """Wait until all modules are imported, if that was started."""
        if self._imports.ident is not None:
            self._imports.join()

    def execute(self, executor: Executor, *, quiet: bool) -> None:
        """Run every step that can run.

        Raises:
            StepsFailedError: if several steps failed; a single error is raised as it is.
            RequirementError: if all steps are done and a requirement was not met.
        """
        # Models are downloaded before the run is displayed; the step that needs one reports its error.
        for reference in (r for step in self.recipe.steps for r in find_references(step.step)):
            if isinstance(reference, ModelRef) and reference.step is None:
                with contextlib.suppress(EmbergeError):
                    self.context.targets.model(reference)
        steps = tuple(step.id for step in self.recipe.steps)
        self.log.record(RunStarted(self.out_folder.path, self.recipe.path, steps, quiet))
        ended_by: BaseException | None = None
        try:
            executor.run_steps(self)
            self._raise_failures()
        except BaseException as error:
            ended_by = error
            raise
        finally:
            links = {step: self.out_folder.locate_link(step) for step in self.finished}
            failed = {step: str(error) for step, error in self.failed.items()}
            blocked = tuple(sorted(self.blocked))
            self.log.record(RunFinished(self.out_folder.path, ended_by, links, failed, blocked))
            self.log.close()

    def _raise_failures(self) -> None:
        if len(self.failed) > 1:
            raise StepsFailedError(self.failed)
        for step, error in self.failed.items():
            error.add_note(f"in step '{step}'")
            raise error
        unmet_requirements = [
            f"step '{step}': not met: {requirement}"
            for step, artifact in self.finished.items()
            for requirement in artifact.unmet
        ]
        if unmet_requirements:
            raise RequirementError("\n".join(unmet_requirements))

    def note_if_blocked(self, step: RecipeStep) -> bool:
        """Record that `step` cannot run if a step that it needs has failed; return whether that is so."""
        missing = [name for name in step.needs if name in self.failed or name in self.blocked]
        if missing:
            self.blocked.add(step.id)
            self.log.note_blocked(step.id, missing)
        return bool(missing)

    def reuse_result(self, step: RecipeStep, fingerprint: str) -> bool:
        """Make the result of an earlier run available to later steps; return whether there is one.

        Raises:
            UnsoundResultError: if the result was changed after its step finished.
        """
        artifact = find_finished_artifact(self.out_folder, step.id, fingerprint)
        if artifact is None:
            return False
        require_sound_result(self.out_folder.locate_result(step.id, fingerprint), self.hashes)
        link = self.out_folder.locate_link(step.id)
        event = StepSkipped(self.out_folder.path, step.id, link, artifact)
        self.finish(step, fingerprint, event)
        return True

    def start(self, step: RecipeStep, fingerprint: str) -> None:
        """Record that a step begins or continues."""
        out = self.out_folder
        saved_step = out.find_saved_step(out.locate_work(step.id, fingerprint))
        self.log.record(StepStarted(out.path, step.id, step.kind, fingerprint, saved_step))

    def finish(self, step: RecipeStep, fingerprint: str, event: ResultEvent) -> None:
        """Link `OUT/<id>` to a step's published result, and make the result available to later steps."""
        self.out_folder.finish_step(step.id, fingerprint)
        self.log.record(event)
        folder = self.out_folder.locate_result(step.id, fingerprint)
        result = FinishedStep(folder, event.artifact, fingerprint, step.step.find_adapted_model())
        self.context.targets.finished[step.id] = result
        self.finished[step.id] = event.artifact
        self.fingerprints[step.id] = fingerprint

    def fail(self, step: RecipeStep, error: Exception) -> None:
        """Record a step's error; the steps that do not need this step still run."""
        self.failed[step.id] = error
        self.log.record(StepFailed(self.out_folder.path, step.id, error))
