"""One run of a recipe, which skips finished steps, continues interrupted steps, and runs the others."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from emberge.contracts import Artifact, Launcher, Machine, ModelRef
from emberge.devices import find_machine
from emberge.errors import EmbergeError
from emberge.files import lock_folder, write_text
from emberge.plugins import Plugins
from emberge.recipes.recipe import Recipe, RecipeStep, references
from emberge.recipes.run.parallel import ParallelRun
from emberge.recipes.run.run_state import RunState
from emberge.recipes.run.run_step import explain_disk_full, run_step
from emberge.recipes.run.step_result import StepResult
from emberge.results import OutFolder

if TYPE_CHECKING:
    from emberge.recipes.run.rank_team import RankTeam


def run_steps(
    recipe: Recipe,
    out: Path,
    plugins: Plugins,
    *,
    machine: Machine | None = None,
    quiet: bool = False,
    team: RankTeam | None = None,
    launcher: Launcher | None = None,
    allow_upload: bool = False,
) -> dict[str, StepResult]:
    """Run a checked recipe's steps into the folder `out` and return each step's result by its id.

    A step that an earlier run finished under the same fingerprint is skipped; an interrupted step continues.
    If a step fails, the steps that do not need it still run. `machine` defaults to all of this machine;
    `quiet` asks reporters to print nothing. With a `team`, this process is its first rank, and it calls the
    other ranks into the steps that every rank enters. A `launcher` runs steps in parallel, each in a separate
    process; without a launcher, steps run one after another in this process. Steps that upload need
    `allow_upload`.

    Raises:
        RecipeError: before any work, if the recipe is a draft with problems, or a step uploads and
            `allow_upload` is False.
        OutInUseError: if another run works in `out`.
        RequirementError: if all steps are done and a requirement of the recipe is not met.
        StepsFailedError: if several steps failed; a single error is raised as it is.
    """
    recipe.require_sound()
    recipe.require_upload_allowed(allow_upload)
    out_folder = OutFolder(Path(out))
    out_folder.prepare()
    with explain_disk_full(out_folder), lock_folder(out_folder.lock):
        if recipe.text:
            write_text(out_folder.path / "recipe.yaml", recipe.kept_text)
        loads = [name for step in recipe.steps for name in step.step.loads]
        run = RunState(
            *(recipe, out_folder, plugins, machine or find_machine()),
            loads=loads if launcher is None else (),
        )
        _fetch_models(run)
        run.log.run_started(recipe.path, quiet)
        try:
            if launcher is not None:
                ParallelRun(run, launcher).run_all()
            else:
                run_in_sequence(run, team)
            run.raise_failures()
        except BaseException as error:
            run.end(error)
            raise
        run.end(None)
    return {step.id: StepResult(step.id, out_folder.link(step.id)) for step in recipe.steps}


def _fetch_models(run: RunState) -> None:
    """Download all models before the run is displayed; the step that needs a model reports its error."""
    for step in run.recipe.steps:
        for reference in references(step.step):
            if isinstance(reference, ModelRef) and reference.step is None:
                with contextlib.suppress(EmbergeError):
                    run.context.targets.model(reference)


def run_in_sequence(run: RunState, team: RankTeam | None) -> None:
    """Run every step that can run; errors of steps are left in `run.failed`.

    With a `team`, this process is its first rank, and calls the other ranks into their steps.
    """
    for step in run.recipe.steps:
        if not run.is_blocked(step):
            _run_step(run, step, team if step.step.every_rank else None)


def _run_step(run: RunState, step: RecipeStep, team: RankTeam | None) -> None:
    try:
        fingerprint, artifact = run.find(step)
        artifact = artifact or _run_new_step(run, step, fingerprint, team)
    except Exception as error:
        run.fail(step, error)
    except BaseException:
        run.log.step_stopped(step.id)
        raise
    else:
        run.take(step, fingerprint, artifact)
    finally:
        run.hashes.save()


def _run_new_step(
    run: RunState, step: RecipeStep, fingerprint: str, team: RankTeam | None
) -> Artifact:
    context = run.context
    if team is not None:
        context = dataclasses.replace(context, machine=team.machine(context.machine))
    run.log.step_started(step, fingerprint)
    run.modules.wait()
    result = run_step(step, fingerprint, context, _call_other_ranks(run, step, fingerprint, team))
    run.place.finish(step.id, fingerprint)
    run.log.step_finished(step.id, result.folder, result.artifact, result.seconds)
    return result.artifact


def _call_other_ranks(
    run: RunState, step: RecipeStep, fingerprint: str, team: RankTeam | None
) -> contextlib.AbstractContextManager[None]:
    """Return the context in which the other ranks also run the step, if it is a step of every rank."""
    if team is None:
        return contextlib.nullcontext()
    return team.run_together(
        {
            "step": step.id,
            "fingerprint": fingerprint,
            "finished": run.fingerprints,
            "recipe": run.context.recipe,
        }
    )
