"""The ranks of a run: those that a launcher tells of, or processes that are started beside this one."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from emberge.contracts.step import Machine
from emberge.errors import EmbergeError, RecipeError

if TYPE_CHECKING:
    from emberge.plugins import Plugins
    from emberge.recipes.recipe import Recipe
    from emberge.recipes.run.rank_team import RankTeam

__all__ = ["RankProcesses", "heed_launcher", "rank_team", "ranks_told", "run_as_follower"]

# What torchrun tells a process, and so does this.
RANK, SIZE = "RANK", "WORLD_SIZE"
# The same by MPI, which is what `accelerate launch --mpirun_hostfile` starts processes by.
BY_MPI = {
    RANK: ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK"),
    SIZE: ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"),
    "LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK"),
    "LOCAL_WORLD_SIZE": (
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "MPI_LOCALNRANKS",
        "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
}
# Tells a process that its standard input ends with the process that started it.
LEASH = "EMBERGE_LEASH"
# How long the first rank may take to notice by itself that another has ended.
GRACE = 30.0
# How long the others may take to leave when all is done.
LEAVING = 20.0


def heed_launcher(ranks: int | None) -> None:
    """Take up what MPI tells this process, and end it as soon as the one that started it as a rank has gone.

    `ranks` are those asked for by name.

    Raises:
        RecipeError: when `accelerate launch` was to start several processes and has started one.
    """
    environment = os.environ
    if environment.pop(LEASH, None):
        threading.Thread(target=_held_by_leash, daemon=True).start()
    if RANK in environment or SIZE in environment:
        return
    told = {
        name: environment[found]
        for name, names in BY_MPI.items()
        if (found := next((each for each in names if each in environment), None))
    }
    if RANK in told and SIZE in told and "MASTER_ADDR" in environment:
        environment.update(told)
    elif ranks is None and {"ACCELERATE_MIXED_PRECISION", "MASTER_ADDR"} <= environment.keys():
        raise RecipeError(
            "accelerate launch was asked for several processes and has started one, as it does with --cpu or "
            "without GPUs; use `emberge run --ranks N`, torchrun, or accelerate launch --multi_gpu without "
            "--cpu, which starts them on CPUs too"
        )


def _held_by_leash() -> None:
    while os.read(0, 1):
        pass
    os._exit(EmbergeError.exit_code)


def ranks_told(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """The process's rank and their number, as `torchrun` or `accelerate launch` tell them; else (0, 1).

    Raises:
        RecipeError: when one of them is no number or they do not fit.
    """
    try:
        rank, size = int(environment.get(RANK, "0")), int(environment.get(SIZE, "1"))
    except ValueError:
        rank, size = -1, 0
    if not 0 <= rank < size:
        raise RecipeError(
            f"RANK={environment.get(RANK)} and WORLD_SIZE={environment.get(SIZE)} are no rank and number "
            "of ranks; start by torchrun or accelerate launch, or use --ranks"
        )
    return rank, size


def rank_team(
    words: Sequence[str], machine: Machine, ranks: int | None, shard: bool
) -> contextlib.AbstractContextManager[RankTeam | None]:
    """The ranks that a launcher told this process of, or `ranks` of them started here; None for one alone.

    `words` are the command's, for processes that are started. `accelerate launch --use_fsdp` means `shard`.

    Raises:
        RecipeError: for a number of ranks that cannot be.
        RanksError: when they do not find each other.
    """
    heed_launcher(ranks)
    return _team(words, machine, ranks, shard)


def run_as_follower(
    ranked: contextlib.AbstractContextManager[RankTeam | None],
    recipe: Recipe,
    out: Path | None,
    plugins: Plugins,
    machine: Machine,
) -> bool:
    """Whether this process is not the first of its ranks; if so it has followed that one to the end."""
    if ranks_told()[0] == 0:
        return False
    with ranked as team:
        assert team is not None
        team.follow(recipe, out, plugins, machine)
    return True


@contextlib.contextmanager
def _team(
    words: Sequence[str], machine: Machine, ranks: int | None, shard: bool
) -> Iterator[RankTeam | None]:
    _, told = ranks_told()
    wanted = told if ranks is None else ranks
    _require_possible(wanted, told, machine)
    if wanted == 1:
        yield None
        return
    followers = RankProcesses(words, wanted) if told == 1 else None
    try:
        from emberge.recipes.run.rank_team import form_team

        shard = shard or os.environ.get("ACCELERATE_USE_FSDP") == "true"
        team = form_team(machine, shard=shard, ended=followers.ended if followers else None)
        yield team
        team.dismiss()
    except BaseException:
        if followers is not None:
            followers.stop()
        raise
    if followers is not None:
        followers.leave()


def _require_possible(wanted: int, told: int, machine: Machine) -> None:
    if wanted < 1:
        raise RecipeError(f"--ranks {wanted}: at least one rank is needed")
    if told not in (1, wanted):
        raise RecipeError(f"--ranks {wanted}, and the launcher started {told}; leave --ranks out")
    gpus = len(machine.devices)
    here = int(os.environ.get("LOCAL_WORLD_SIZE", wanted))
    if machine.devices[0].startswith("cuda") and here > gpus:
        raise RecipeError(
            f"{here} ranks on this machine, which has {gpus} GPUs for them; take as many, or --devices cpu"
        )


class RankProcesses:
    """Ranks 1 to N - 1 of a run as processes of the same command, watched until it ends.

    One that dies ends this process too: at once where the first rank notices, else after half a minute.
    """

    def __init__(self, words: Sequence[str], ranks: int) -> None:
        self._ended: dict[int, str] = {}
        self._over = threading.Event()
        told = {SIZE: ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": _free_port()}
        shared = {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in told.items()}}
        os.environ.update({**shared, RANK: "0", "LOCAL_RANK": "0"})
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "emberge", *words],
                stdin=subprocess.PIPE,  # nothing is written: it ends when this process does
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**os.environ, RANK: str(rank), "LOCAL_RANK": str(rank), LEASH: "1"},
                start_new_session=True,  # Ctrl-C is for the first rank, which ends the others
            )
            for rank in range(1, ranks)
        ]
        for rank, process in enumerate(self._processes, 1):
            threading.Thread(target=self._watch, args=(rank, process), daemon=True).start()

    def ended(self) -> str | None:
        """What is known of ranks that have ended before their time, looked for during some seconds."""
        end = time.monotonic() + 5
        while not self._ended and time.monotonic() < end:
            time.sleep(0.05)
        return "; ".join(self._ended.values()) or None

    def leave(self) -> None:
        """Wait for the others to end, and end those that do not; the environment is as before."""
        self._over.set()
        end = time.monotonic() + LEAVING
        for process in self._processes:
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
        self._forget()

    def stop(self) -> None:
        """End the others at once."""
        self._over.set()
        for process in self._processes:
            process.kill()
        self._forget()

    def _forget(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for name in (RANK, SIZE, "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
            os.environ.pop(name, None)

    def _watch(self, rank: int, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        said = process.stderr.read()
        process.wait()
        if self._over.is_set():
            return
        lines = [line for line in said.splitlines() if line.startswith("error: ")]
        why = lines[-1].removeprefix("error: ") if lines else _how(process.returncode)
        self._ended[rank] = f"rank {rank} has ended ({why})"
        if not self._over.wait(
            GRACE
        ):  # the first rank hangs in something that no signal interrupts
            for other in self._processes:
                other.kill()
            print(
                f"error: {self._ended[rank]}; the same command goes on from here", file=sys.stderr
            )
            sys.stderr.flush()
            os._exit(EmbergeError.exit_code)


def _how(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
