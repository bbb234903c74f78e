"""Several ranks on one recipe: the first runs it and calls the others into steps that every rank enters."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from emberge.contracts import Machine
from emberge.errors import EmbergeError, RecipeError, exits_refused
from emberge.plugins import Plugins
from emberge.ranks import LostRankError, Ranks, RanksError, join_ranks, leave_ranks
from emberge.recipes.recipe import Recipe, RecipeStep
from emberge.recipes.run.step_call import build_finished_targets
from emberge.recipes.run.workspace import RunContext, StepWorkspace
from emberge.results import OutFolder

# Time for which a failed rank waits for the other ranks to report that they failed too.
AGREEMENT = datetime.timedelta(seconds=60)


def form_team(machine: Machine, *, shard: bool, ended: Callable[[], str | None] | None) -> RankTeam:
    """Return the team of all ranks, found by environment variables; `ended` returns which ranks have ended.

    Raises:
        RanksError: if the other ranks are not found.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    ranks = join_ranks(machine.devices[local_rank % len(machine.devices)])
    return RankTeam(ranks, shard, ended or (lambda: None))


class RankTeam:
    """The ranks of this process's run: the first rank runs the steps, and the other ranks follow it."""

    def __init__(self, ranks: Ranks, shard: bool, ended: Callable[[], str | None]) -> None:
        self.ranks = ranks
        self._shard = shard
        self._ended = ended
        self._calls = 0
        self._broken = ""

    def machine(self, machine: Machine) -> Machine:
        """Return the machine with the devices and the number of ranks of a step that all ranks run."""
        return dataclasses.replace(
            machine, devices=(self.ranks.device,), ranks=self.ranks.size, shard=self._shard
        )

    @contextlib.contextmanager
    def run_together(self, call: Mapping[str, Any]) -> Iterator[None]:
        """Make the other ranks run a step during the block; after an error here, check that they failed too.

        Raises:
            RanksError: if ranks were lost, now or in an earlier step.
        """
        if self._broken:
            raise RanksError(f"{self._broken}; nothing more can be trained in this run")
        self._calls += 1
        self.ranks.send(f"call/{self._calls}", dict(call))
        try:
            yield
        except LostRankError as error:
            self._broken = self._ended() or str(error)
            raise RanksError(f"{self._broken}; the same command goes on from here") from error
        except Exception as error:
            self._exchange_outcome(str(error))
            raise
        self._exchange_outcome("")

    def _exchange_outcome(self, failure: str) -> None:
        self.ranks.send(_build_outcome_key(self._calls, 0), failure)
        for rank in range(1, self.ranks.size):
            try:
                rank_outcome = self.ranks.receive(_build_outcome_key(self._calls, rank), AGREEMENT)
            except RanksError as error:
                self._broken = self._ended() or f"rank {rank} is out of step ({error})"
                continue
            if rank_outcome and not failure:
                self._broken = f"rank {rank} failed alone ({rank_outcome})"
        if self._broken and not failure:
            raise RanksError(f"{self._broken}; the same command goes on from here")

    def dismiss(self) -> None:
        """Ask the other ranks to exit and wait up to 10 s for each."""
        if self._broken or not self.ranks.is_first:
            return
        self.ranks.send(f"call/{self._calls + 1}", None)
        for rank in range(1, self.ranks.size):
            with contextlib.suppress(RanksError):
                self.ranks.receive(f"left/{rank}", datetime.timedelta(seconds=10))
        leave_ranks()

    def follow(self, recipe: Recipe, out: Path, plugins: Plugins, machine: Machine) -> None:
        """Run the steps that the first rank announces to this rank, until the run is done.

        `out` is the folder in which the first rank works. On another machine, results of earlier steps are
        found only if the folder is visible there.

        Raises:
            EmbergeError: if a step failed on this rank only, or the first rank has ended.
        """
        ranks = self.ranks
        number = 1
        while (call := ranks.receive(f"call/{number}")) is not None:
            if call["recipe"] != recipe.hash:
                raise RecipeError("this rank was given another recipe than the first one")
            failure = ""
            out_folder = OutFolder(out)
            out_folder.prepare()
            try:
                (step,) = (step for step in recipe.steps if step.id == call["step"])
                _enter_step(step, call, recipe, out_folder, plugins, self.machine(machine))
            except LostRankError:
                raise
            except Exception as error:
                failure = str(error) or type(error).__name__
                ranks.send(_build_outcome_key(number, ranks.rank), failure)
                if not _has_failed_too(ranks, number):
                    raise EmbergeError(f"rank {ranks.rank}: {failure}") from error
            else:
                ranks.send(_build_outcome_key(number, ranks.rank), "")
            number += 1
        ranks.send(f"left/{ranks.rank}", True)
        leave_ranks()


def _has_failed_too(ranks: Ranks, number: int) -> bool:
    try:
        return bool(ranks.receive(_build_outcome_key(number, 0), AGREEMENT))
    except LostRankError:
        raise
    except RanksError:
        return False


def _build_outcome_key(number: int, rank: int) -> str:
    return f"over/{number}/{rank}"


def _enter_step(
    step: RecipeStep,
    call: Mapping[str, Any],
    recipe: Recipe,
    out_folder: OutFolder,
    plugins: Plugins,
    machine: Machine,
) -> None:
    targets = build_finished_targets(recipe, out_folder, plugins, call["finished"])
    with tempfile.TemporaryDirectory(prefix="emberge-rank-") as output:
        context = FollowerContext(
            place=out_folder,
            targets=targets,
            listener=None,  # type: ignore[arg-type]  # nothing is recorded here
            machine=machine,
            seed=recipe.seed,
            recipe=call["recipe"],
            output=Path(output),
        )
        with exits_refused(f"step '{step.id}'"):
            step.step.run(FollowerWorkspace(step, call["fingerprint"], context))


@dataclasses.dataclass(frozen=True)
class FollowerContext(RunContext):
    """The context of a step on a rank other than the first; files written in `output` are dropped."""

    output: Path = Path()


class FollowerWorkspace(StepWorkspace):
    """A workspace that records no events and whose output is dropped."""

    context: FollowerContext

    def __post_init__(self) -> None:
        """Skip the set-up of the first rank, so that none of its files are opened."""

    @property
    def folder(self) -> Path:
        return self.context.output

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
