"""Several ranks on one recipe: the first runs it and calls the others into steps that every rank enters."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from emberge.contracts import Machine, StepFinished
from emberge.errors import RecipeError
from emberge.interpreter import refuse_exits
from emberge.plugins import Plugins
from emberge.ranks import LostRankError, RankGroup, RanksError, join_ranks, leave_ranks
from emberge.recipes.recipe import Recipe, RecipeStep
from emberge.recipes.run.recipe_run import InThisProcess, RecipeRun
from emberge.recipes.run.step_run import RunContext, StepRun, run_step
from emberge.recipes.targets import find_targets
from emberge.results import OutFolder

# Time for which a rank that has done or failed a step waits for the others' outcomes.
OUTCOME_PATIENCE = datetime.timedelta(seconds=60)
# Seconds in which a launcher ends the ranks after it has noticed that one of them died; it says which.
LAUNCHER_SECONDS = 5.0


def form_team(machine: Machine, *, shard: bool) -> RankTeam:
    """Return the team of all ranks, found by environment variables.

    Raises:
        RanksError: if the other ranks are not found.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    return RankTeam(join_ranks(machine.devices[local_rank % len(machine.devices)]), shard)


@dataclasses.dataclass(frozen=True)
class _StepCall:
    """Facts that the first rank shares about a step: ids and hashes, as values of JSON."""

    step_id: str
    fingerprint: str
    finished: dict[str, str]  # fingerprints of earlier steps by id
    recipe_hash: str


class RankTeam(InThisProcess):
    """The executor of the first of several ranks, which the other ranks follow."""

    def __init__(self, ranks: RankGroup, shard: bool) -> None:
        self.ranks = ranks
        self._shard = shard
        self._calls = 0
        self._broken = ""

    def run_one_step(self, run: RecipeRun, step: RecipeStep, fingerprint: str) -> StepFinished:
        """Run a step, together with the other ranks if it is a step of every rank."""
        if not step.step.every_rank:
            return super().run_one_step(run, step, fingerprint)
        machine = self._share_machine(run.context.machine)
        context = dataclasses.replace(run.context, machine=machine)
        call = _StepCall(step.id, fingerprint, run.fingerprints, run.context.recipe.hash)
        together = self._run_together(call)
        return run_step(step, fingerprint, context, together)

    def _share_machine(self, machine: Machine) -> Machine:
        """Return the machine as a step of all ranks gets it: this rank's device, and the number of ranks."""
        return dataclasses.replace(
            machine, devices=(self.ranks.device,), ranks=self.ranks.size, shard=self._shard
        )

    @contextlib.contextmanager
    def _run_together(self, call: _StepCall) -> Iterator[None]:
        """Make the other ranks run a step during the block; if it fails here, check that they failed too."""
        if self._broken:
            raise RanksError(f"{self._broken}; nothing more can be trained in this run")
        with self._agree_on_outcome():
            self.ranks.share_from_first(dataclasses.asdict(call))
            yield

    @contextlib.contextmanager
    def _agree_on_outcome(self) -> Iterator[None]:
        """Run a step in the block, and compare with the other ranks whether it failed."""
        self._calls += 1
        try:
            yield
        except LostRankError as error:
            self._broken = str(error)
            time.sleep(LAUNCHER_SECONDS)
            raise
        except Exception as error:  # of any class, as a step is a plugin's code
            self._broken = self._compare_outcomes(str(error) or type(error).__name__)
            raise
        self._broken = self._compare_outcomes("")
        if self._broken:
            raise RanksError(f"{self._broken}; the same command goes on from here")

    def _compare_outcomes(self, failure: str) -> str:
        """Return how the ranks differ in the outcome of a step; an empty text if they do not."""
        keys = [f"outcome/{self._calls}/{rank}" for rank in range(self.ranks.size)]
        store = self.ranks.store
        assert store is not None
        try:
            store.set(keys[self.ranks.rank], failure)
            store.wait(keys, OUTCOME_PATIENCE)
            failures = [store.get(key).decode() for key in keys]
        except RuntimeError as error:
            return f"another rank is out of step ({(str(error).splitlines() or [''])[0]})"
        if all(failures) or not any(failures):
            return ""
        rank, text = next((rank, text) for rank, text in enumerate(failures) if text)
        return f"rank {rank} failed alone ({text})"

    def dismiss(self) -> None:
        """Ask the other ranks to exit."""
        if not self._broken:
            self.ranks.share_from_first(None)
            leave_ranks()

    def follow(self, recipe: Recipe, out: Path, plugins: Plugins, machine: Machine) -> None:
        """Run the steps that the first rank announces to this rank, until the run is done.

        `out` is the folder in which the first rank works. On another machine, results of earlier steps are
        found only if the folder is visible there.

        Raises:
            EmbergeError: if a step failed on this rank only, or the first rank has ended.
        """
        while (shared := self.ranks.share_from_first(None)) is not None:
            call = _StepCall(**shared)
            if call.recipe_hash != recipe.hash:
                raise RecipeError("this rank was given another recipe than the first one")
            try:
                with self._agree_on_outcome():
                    self._follow_step(call, recipe, OutFolder(out), plugins, machine)
            except Exception:  # of any class, as a step is a plugin's code
                if self._broken:
                    raise  # otherwise the step failed on every rank
        leave_ranks()

    def _follow_step(
        self,
        call: _StepCall,
        recipe: Recipe,
        out_folder: OutFolder,
        plugins: Plugins,
        machine: Machine,
    ) -> None:
        """Run a step as the first rank does, and drop what it writes and reports."""
        out_folder.prepare()
        step = next(step for step in recipe.steps if step.id == call.step_id)
        context = RunContext(
            out_folder=out_folder,
            targets=find_targets(recipe, out_folder, plugins, call.finished),
            record=lambda _: None,
            machine=self._share_machine(machine),
            recipe=recipe,
        )
        with tempfile.TemporaryDirectory(prefix="emberge-rank-") as output:
            follower = _FollowerRun(step, call.fingerprint, context, Path(output))
            with refuse_exits(f"step '{step.id}'"):
                step.step.run(follower)


class _FollowerRun(StepRun):
    """A workspace on a rank other than the first, which reports nothing and whose `folder` is dropped."""

    def progress(self, done: float, total: float, unit: str = "", note: str = "") -> None:
        """Ignore progress: the first rank reports it."""

    def part(
        self, noun: str, number: int, count: int, name: str = ""
    ) -> contextlib.AbstractContextManager[None]:
        """Run the block; the first rank reports its progress."""
        return contextlib.nullcontext()

    def metric(self, name: str, value: float, at: int | None = None) -> None:
        """Ignore a number: the first rank logs it."""

    def warn(self, message: str) -> None:
        """Ignore a warning: the first rank shows it."""
