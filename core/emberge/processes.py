"""Processes of a run: the ranks that it starts, which end when it ends, and why a process ended."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from emberge.contracts import Machine
from emberge.errors import EmbergeError, RecipeError
from emberge.interpreter import build_python_command
from emberge.wording import count_noun

_ERROR_PREFIX = "error: "
# Environment variables: the number that torchrun gives a process, how many processes there are, and the id of
# the process that started the ranks of `--ranks`.
_RANK_VARIABLE, _SIZE_VARIABLE, _STARTER_VARIABLE = "RANK", "WORLD_SIZE", "EMBERGE_RANKS_STARTER"
# Address at which ranks of this machine find each other.
_LOCAL_ADDRESS = "127.0.0.1"
# Errors of torch's launcher, kept until the process ends, as their frames own its timer.
_KEPT_ERRORS: list[BaseException] = []
# Seconds that ranks have to end their step and save its state after a signal; torch allows 30 by default.
_STOP_SECONDS = 3600
_START_REMEDY = "start by torchrun or accelerate launch, or use --ranks"


def find_error_lines(printed: Iterable[str]) -> list[str]:
    """Return the lines that name errors, or the last line that is not empty; stripped of blanks."""
    lines = [line.strip() for line in printed if line.strip()]
    return [line for line in lines if line.startswith(_ERROR_PREFIX)] or lines[-1:]


def explain_end(code: int, printed: Iterable[str]) -> str:
    """Return why a child ended: the last error that it printed, else its signal or exit code."""
    last_line = "".join(find_error_lines(printed)[-1:])
    if last_line.startswith(_ERROR_PREFIX):
        return last_line.removeprefix(_ERROR_PREFIX)
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def read_rank_and_size(environment: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """Return the process's rank and the number of ranks that a launcher set; (0, 1) without a launcher.

    Raises:
        RecipeError: if the rank or the size is not a number, or the rank is not below the size.
    """
    rank_text = environment.get(_RANK_VARIABLE, "0")
    size_text = environment.get(_SIZE_VARIABLE, "1")
    try:
        rank, size = int(rank_text), int(size_text)
    except ValueError:
        rank, size = -1, 0
    if not 0 <= rank < size:
        raise RecipeError(
            f"RANK={rank_text} and WORLD_SIZE={size_text} are no rank and number of ranks; {_START_REMEDY}"
        )
    return rank, size


def choose_rank_count(ranks: int | None, machine: Machine) -> int:
    """Return the number of ranks that shall run: `ranks` of `--ranks`, else those that a launcher started.

    Raises:
        RecipeError: if a launcher started another number or set no number, or the machine has too few GPUs.
    """
    _, started = read_rank_and_size()
    count = started if ranks is None else ranks
    if started not in (1, count):
        raise RecipeError(f"--ranks {count}, and the launcher started {started}; leave --ranks out")
    device_count = len(machine.devices)
    ranks_here = os.environ.get("LOCAL_WORLD_SIZE", str(count))
    if not ranks_here.isdecimal():
        raise RecipeError(f"LOCAL_WORLD_SIZE={ranks_here} is no number of ranks; {_START_REMEDY}")
    if machine.device.startswith("cuda") and int(ranks_here) > device_count:
        raise RecipeError(
            f"{count_noun(int(ranks_here), 'rank')} on this machine, which has "
            f"{count_noun(device_count, 'GPU')} for them; take as many, or --devices cpu"
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
    command, *arguments = build_python_command("-m", "emberge", *words)
    os.environ[_STARTER_VARIABLE] = str(os.getpid())
    with tempfile.TemporaryDirectory(prefix="emberge-ranks-") as folder:
        logs = DefaultLogsSpecs(folder, redirects=dict.fromkeys(range(1, count), Std.ALL))
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=count,
            run_id="emberge",
            rdzv_backend="c10d",
            rdzv_endpoint=f"{_LOCAL_ADDRESS}:0",
            local_addr=_LOCAL_ADDRESS,
            max_restarts=0,
            shutdown_timeout=_STOP_SECONDS,
            logs_specs=logs,
        )
        try:
            elastic_launch(config, command)(*arguments)
        except SignalException as signalled:
            # Its frames hold a timer, which must not be freed in its own thread: it would join itself.
            _KEPT_ERRORS.append(signalled)
            return 128 + signalled.sigval  # the first rank has said that it was stopped
        except ChildFailedError as failed:
            rank, failure = next(iter(failed.failures.items()))
            if rank == 0 and failure.exitcode > 0:
                return failure.exitcode  # its error was printed
            printed = Path(failure.error_file).with_name("stderr.log")
            lines = printed.read_text(errors="replace").splitlines() if printed.is_file() else ()
            raise EmbergeError(
                f"rank {rank} has ended ({explain_end(failure.exitcode, lines)}); the same command goes "
                "on from here"
            ) from None
        finally:
            logging.disable(logging.NOTSET)
            del os.environ[_STARTER_VARIABLE]
    return 0


def end_with_starter() -> None:
    """From now on, end this process as soon as the process that started it by `run_ranks` has ended."""
    starter = os.environ.get(_STARTER_VARIABLE)
    if starter is not None:
        threading.Thread(target=_wait_for_starter, args=(int(starter),), daemon=True).start()


def _wait_for_starter(starter: int) -> None:
    while os.getppid() == starter:
        time.sleep(0.5)
    os._exit(EmbergeError.exit_code)
