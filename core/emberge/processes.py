"""Processes that are started here: the other ranks of a run, and one for a step that a launcher runs.

Each child process ends when this process ends. Its standard input is a pipe that this process keeps open.
When this process ends in any way, the system closes the pipe, and the child, which waits for that, ends too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from emberge.contracts import Ended, Launch, Machine
from emberge.errors import EmbergeError, RecipeError
from emberge.interpreter import python_command

LEASH = "EMBERGE_LEASH"
"""The environment variable by which a process knows that its standard input ends with its parent."""

_ERROR = "error: "


def end_with_parent() -> None:
    """End this process and its process group as soon as its standard input ends."""
    threading.Thread(target=_wait_for_end, daemon=True).start()


def read_call() -> bytes | None:
    """Return the first line of standard input; from then on, this process ends with its parent.

    The result is None if the parent ended before it wrote a complete line.
    """
    with open(0, "rb", buffering=0, closefd=False) as stream:
        line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    end_with_parent()
    return line


def last_lines(printed: Iterable[str]) -> list[str]:
    """Return the lines that name errors, or the last line that is not empty; stripped of blanks."""
    lines = [line.strip() for line in printed if line.strip()]
    return [line for line in lines if line.startswith(_ERROR)] or lines[-1:]


def describe_end(code: int, printed: Iterable[str]) -> str:
    """Return why a child ended: the last error that it printed, else its signal or exit code."""
    error_lines = [line for line in last_lines(printed) if line.startswith(_ERROR)][-1:]
    if error_lines:
        return error_lines[0].removeprefix(_ERROR)
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def _wait_for_end() -> None:
    while os.read(0, 4096):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(EmbergeError.exit_code)


# ── ranks ───────────────────────────────────────────────────────────────────────────────────────


LISTENER = "EMBERGE_RANKS_LISTENER"
"""The environment variable with the number of the open socket at which the first rank listens."""

# The variables by which torchrun, and also this module, numbers its processes.
RANK, SIZE = "RANK", "WORLD_SIZE"
# MPI's variables for the same numbers; `accelerate launch --mpirun_hostfile` starts processes by
# MPI.
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
# Address at which ranks of this machine find the first rank.
HOST = "127.0.0.1"
# Seconds that the first rank may take to notice by itself that another rank has ended.
GRACE = 30.0
# Seconds that the other ranks may take to end after the work is done.
LEAVING = 20.0

RanksEnded = Callable[[], "str | None"]
"""A function that returns which ranks ended early and why; None if no rank did."""


class _Dismissible(Protocol):
    def dismiss(self) -> None: ...


T = TypeVar("T", bound=_Dismissible)


def adopt_launcher(ranks: int | None) -> None:
    """Copy MPI's rank variables to torchrun's; a process that is a rank ends with its parent.

    `ranks` is the number of `--ranks`, None without the option.

    Raises:
        RecipeError: if `accelerate launch` was to start several processes and has started only one.
    """
    environment = os.environ
    if environment.pop(LEASH, None):
        end_with_parent()
    if RANK in environment or SIZE in environment:
        return
    numbering = {
        name: environment[variable]
        for name, names in BY_MPI.items()
        if (variable := next((candidate for candidate in names if candidate in environment), None))
    }
    if RANK in numbering and SIZE in numbering and "MASTER_ADDR" in environment:
        environment.update(numbering)
    elif ranks is None and {"ACCELERATE_MIXED_PRECISION", "MASTER_ADDR"} <= environment.keys():
        raise RecipeError(
            "accelerate launch was asked for several processes and has started one, as it does with --cpu or "
            "without GPUs; use `emberge run --ranks N`, torchrun, or accelerate launch --multi_gpu without "
            "--cpu, which starts them on CPUs too"
        )


def rank_and_size(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return the process's rank and the number of ranks that a launcher set; (0, 1) without a launcher.

    Raises:
        RecipeError: if the rank or the size is not a number, or the rank is not below the size.
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
    words: Sequence[str],
    machine: Machine,
    ranks: int | None,
    form: Callable[[RanksEnded | None], T],
) -> contextlib.AbstractContextManager[T | None]:
    """Return a context manager that yields the team of this run's ranks; None for a process that runs alone.

    A launcher has started the other ranks, or they are started here, `ranks` in all, by the command of these
    `words`. `form` connects the ranks; its argument is None unless ranks were started here.

    Raises:
        RecipeError: if the number of ranks is impossible.
        RanksError: if the ranks do not find each other.
    """
    adopt_launcher(ranks)
    return _join_team(words, machine, ranks, form)


@contextlib.contextmanager
def _join_team(
    words: Sequence[str],
    machine: Machine,
    ranks: int | None,
    form: Callable[[RanksEnded | None], T],
) -> Iterator[T | None]:
    _, started = rank_and_size()
    count = started if ranks is None else ranks
    _require_possible(count, started, machine)
    if count == 1:
        yield None
        return
    other_ranks = RankProcesses(words, count) if started == 1 else None
    try:
        team = form(other_ranks.ended if other_ranks else None)
        yield team
        team.dismiss()
    except BaseException:
        if other_ranks is not None:
            other_ranks.stop()
        raise
    if other_ranks is not None:
        other_ranks.leave()


def _require_possible(count: int, started: int, machine: Machine) -> None:
    if count < 1:
        raise RecipeError(f"--ranks {count}: at least one rank is needed")
    if started not in (1, count):
        raise RecipeError(f"--ranks {count}, and the launcher started {started}; leave --ranks out")
    device_count = len(machine.devices)
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", count))
    if machine.device.startswith("cuda") and ranks_here > device_count:
        raise RecipeError(
            f"{ranks_here} ranks on this machine, which has {device_count} GPUs for them; take as many, or "
            "--devices cpu"
        )


class RankProcesses:
    """Ranks 1 to N - 1 of a run as processes of the same command, watched until it ends.

    If a rank dies, this process ends too: at once if the first rank notices, otherwise after half a minute.
    """

    def __init__(self, words: Sequence[str], ranks: int) -> None:
        self._ended: dict[int, str] = {}
        self._over = threading.Event()
        # The socket is open from the start and is passed on, so that no other process can take the
        # port in between.
        self._listener = socket.create_server((HOST, 0))
        port = self._listener.getsockname()[1]
        values_by_name = {SIZE: ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
        shared_variables = {name: str(value) for name, value in values_by_name.items()}
        shared_variables["MASTER_ADDR"] = HOST
        first_rank_variables = {
            **shared_variables,
            RANK: "0",
            "LOCAL_RANK": "0",
            LISTENER: str(self._listener.fileno()),
        }
        self._before = {name: os.environ.get(name) for name in first_rank_variables}
        environment = {**os.environ, **shared_variables, LEASH: "1"}
        os.environ.update(first_rank_variables)
        self._processes = [
            subprocess.Popen(
                python_command("-m", "emberge", *words),
                stdin=subprocess.PIPE,  # nothing is written: it ends when this process does
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env={**environment, RANK: str(rank), "LOCAL_RANK": str(rank)},
                start_new_session=True,  # Ctrl-C is for the first rank, which ends the others
            )
            for rank in range(1, ranks)
        ]
        for rank, process in enumerate(self._processes, 1):
            threading.Thread(target=self._watch, args=(rank, process), daemon=True).start()

    def ended(self) -> str | None:
        """Wait up to 5 s for a rank to end early; return which ranks ended and why, or None."""
        end = time.monotonic() + 5
        while not self._ended and time.monotonic() < end:
            time.sleep(0.05)
        return "; ".join(self._ended.values()) or None

    def leave(self) -> None:
        """Wait for the other ranks to end, kill ranks that do not, and restore the environment."""
        self._over.set()
        end = time.monotonic() + LEAVING
        for process in self._processes:
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
        self._forget()

    def stop(self) -> None:
        """Kill the other ranks at once, and restore the environment."""
        self._over.set()
        for process in self._processes:
            process.kill()
        self._forget()

    def _forget(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        self._listener.close()
        for name, value in self._before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value

    def _watch(self, rank: int, process: subprocess.Popen[str]) -> None:
        assert process.stderr is not None
        with process.stderr:
            printed = process.stderr.read()
        process.wait()
        if self._over.is_set():
            return
        reason = describe_end(process.returncode, printed.splitlines())
        self._ended[rank] = f"rank {rank} has ended ({reason})"
        if not self._over.wait(GRACE):
            # The first rank hangs in a call that no signal interrupts.
            for other in self._processes:
                other.kill()
            print(
                f"error: {self._ended[rank]}; the same command goes on from here", file=sys.stderr
            )
            sys.stderr.flush()
            os._exit(EmbergeError.exit_code)


# ── one step ────────────────────────────────────────────────────────────────────────────────────

# The command line's word that starts a worker; it is not for users.
WORKER = "_work"
# Seconds that a process may take to end after it was asked to.
STEP_GRACE = 5.0
_TAIL = 4096  # bytes at the end of a log that are looked at


class StepProcess:
    """A process of one attempt at a step, which ends when this process ends in any way.

    `machine` is the share of this machine that the step may use, and `threads` is the number of threads of
    its sums.

    Raises:
        EmbergeError: if this machine does not see the folders of the run.
    """

    def __init__(self, launch: Launch, machine: Machine, threads: int) -> None:
        self._launch = launch
        self._must_end: float | None = None
        _require_folders(launch)
        call = {**launch.call, "machine": dataclasses.asdict(machine)}
        with launch.log.open("ab") as log:
            self._process = subprocess.Popen(
                python_command("-m", "emberge", WORKER),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=launch.folder,
                env={**os.environ, **_list_thread_variables(threads, machine)},
                start_new_session=True,  # Ctrl-C is for the run, which ends its steps
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already, and `ended` says how
            self._process.stdin.write(json.dumps(call).encode() + b"\n")
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        """The process's number on this machine."""
        return self._process.pid

    def ended(self) -> Ended | None:
        """Return the end of the process; None while it runs."""
        if self._must_end is not None and time.monotonic() > self._must_end:
            self.kill()
        code = self._process.poll()
        if code is None:
            return None
        self._close()
        return Ended(code, _read_last_lines(self._launch))

    def wait(self) -> Ended:
        """Wait until the process has ended, and return its end."""
        self._process.wait()
        ended = self.ended()
        assert ended is not None
        return ended

    def stop(self) -> None:
        """Ask the process to end; `ended` kills it some seconds later."""
        if self._must_end is None:
            self._must_end = time.monotonic() + STEP_GRACE
            self._send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and all that it has started."""
        self._send_signal(signal.SIGKILL)
        self._process.wait()
        self._close()

    def _send_signal(self, number: int) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()


def _require_folders(launch: Launch) -> None:
    for folder in (launch.work, launch.folder):
        if not folder.is_dir():
            raise EmbergeError(
                f"{folder} is not seen on {socket.gethostname()}; every machine of the run must see it at "
                "the same place, on a disk that they share"
            )


def _list_thread_variables(threads: int, machine: Machine) -> dict[str, str]:
    """Return environment variables that libraries read at import; the first two affect results' bytes."""
    tokenizer_variables = {"RAYON_NUM_THREADS": str(max(1, machine.workers))}
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), **tokenizer_variables}


def _read_last_lines(launch: Launch) -> str:
    """Return the errors that the process printed, or else its last line."""
    try:
        with launch.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            printed = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(last_lines(printed.split("\n")))
