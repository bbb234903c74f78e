"""Steps one after another in this process; those that every rank enters are entered by all of them."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from emberge.contracts import Artifact
from emberge.recipes.recipe import RecipeStep
from emberge.recipes.run.run_state import RunState
from emberge.recipes.run.run_step import run_step

if TYPE_CHECKING:
    from emberge.recipes.run.rank_team import RankTeam


def run_in_sequence(run: RunState, team: RankTeam | None) -> None:
    """Run every step that can run; errors of steps are left in `run.failed`.

    With a `team` this process is the first of its ranks, and calls the others into their steps.
    """
    for step in run.recipe.steps:
        if not run.is_blocked(step):
            _run_one(run, step, team if step.step.every_rank else None)


def _run_one(run: RunState, step: RecipeStep, team: RankTeam | None) -> None:
    try:
        fingerprint, artifact = run.find(step)
        artifact = artifact or _work(run, step, fingerprint, team)
    except Exception as error:
        run.fail(step, error)
    except BaseException:
        run.log.step_stopped(step.id)
        raise
    else:
        run.take(step, fingerprint, artifact)
    finally:
        run.hashes.save()


def _work(run: RunState, step: RecipeStep, fingerprint: str, team: RankTeam | None) -> Artifact:
    context = run.context
    if team is not None:
        context = dataclasses.replace(context, machine=team.machine(context.machine))
    run.log.step_started(step, fingerprint)
    run.modules.wait()
    result = run_step(step, fingerprint, context, _other_ranks(run, step, fingerprint, team))
    run.place.finish(step.id, fingerprint)
    run.log.step_finished(step.id, result.folder, result.artifact, result.seconds)
    return result.artifact


def _other_ranks(
    run: RunState, step: RecipeStep, fingerprint: str, team: RankTeam | None
) -> contextlib.AbstractContextManager[None]:
    """Return the context in which the other ranks are in the step too, if it is one for them."""
    if team is None:
        return contextlib.nullcontext()
    return team.together(
        {
            "step": step.id,
            "fingerprint": fingerprint,
            "finished": run.fingerprints,
            "recipe": run.context.recipe,
            "out": str(run.place.path.absolute()),
            "rehearsal": run.rehearsal,
        }
    )
