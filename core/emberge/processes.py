"""Processes that are started here: the ranks of a run, and one for a step that a launcher runs.

Each child process ends when this process ends in any way. The standard input of a step's process is a pipe
that this process keeps open, and that the system closes; a rank looks at who its parent is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from emberge.contracts import Ended, Launch, Machine
from emberge.errors import EmbergeError, RecipeError
from emberge.interpreter import python_command

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


# The variables by which torchrun numbers its processes.
RANK, SIZE = "RANK", "WORLD_SIZE"
# The process that started the ranks of `--ranks`; they end when it has ended.
STARTER = "EMBERGE_RANKS_STARTER"
# Address at which ranks of this machine find each other.
HOST = "127.0.0.1"


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


def require_possible_ranks(ranks: int | None, machine: Machine) -> int:
    """Return the number of ranks that shall run: `ranks` of `--ranks`, else those that a launcher started.

    Raises:
        RecipeError: if a launcher started another number, or the machine has too few GPUs.
    """
    _, started = rank_and_size()
    count = started if ranks is None else ranks
    if started not in (1, count):
        raise RecipeError(f"--ranks {count}, and the launcher started {started}; leave --ranks out")
    device_count = len(machine.devices)
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", count))
    if machine.device.startswith("cuda") and ranks_here > device_count:
        raise RecipeError(
            f"{ranks_here} ranks on this machine, which has {device_count} GPUs for them; take as many, or "
            "--devices cpu"
        )
    return count


def run_ranks(words: Sequence[str], count: int) -> int:
    """Run the command of `words` as `count` ranks by torch's launcher; return the first rank's exit code.

    The first rank prints as the command alone would; what the others print is shown only if one fails.

    Raises:
        EmbergeError: if a rank has ended early; says why. All ranks have ended then.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.disable()  # torch's own report of a failure is long, and is not for users
    command, *arguments = python_command("-m", "emberge", *words)
    os.environ[STARTER] = str(os.getpid())
    with tempfile.TemporaryDirectory(prefix="emberge-ranks-") as folder:
        logs = DefaultLogsSpecs(folder, redirects=dict.fromkeys(range(1, count), Std.ALL))
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=count,
            run_id="emberge",
            rdzv_backend="c10d",
            rdzv_endpoint=f"{HOST}:0",
            local_addr=HOST,
            max_restarts=0,
            logs_specs=logs,
        )
        try:
            elastic_launch(config, command)(*arguments)
        except SignalException as signalled:
            return 128 + signalled.sigval  # the first rank has said that it was stopped
        except ChildFailedError as failed:
            rank, failure = next(iter(failed.failures.items()))
            if rank == 0 and failure.exitcode > 0:
                return failure.exitcode  # its error was printed
            printed = Path(failure.error_file).with_name("stderr.log")
            lines = printed.read_text(errors="replace").splitlines() if printed.is_file() else ()
            raise EmbergeError(
                f"rank {rank} has ended ({describe_end(failure.exitcode, lines)}); the same command goes "
                "on from here"
            ) from None
        finally:
            logging.disable(logging.NOTSET)
            del os.environ[STARTER]
    return 0


def end_with_starter() -> None:
    """End this process when the one that started it as a rank, by `run_ranks`, has ended in any way."""
    starter = os.environ.get(STARTER)
    if starter is not None:
        threading.Thread(target=_wait_for_starter, args=(int(starter),), daemon=True).start()


def _wait_for_starter(starter: int) -> None:
    while os.getppid() == starter:
        time.sleep(0.5)
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
