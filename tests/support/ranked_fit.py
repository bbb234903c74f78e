"""Trainings on several ranks, for tests: each rank is a process, forked from one that has imported all."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

LIMIT = 240.0  # seconds until ranks are taken to hang


@dataclass(frozen=True)
class Death:
    """When a rank ends itself by SIGKILL: after its first "step" from the n-th on, or at the n-th "flush"."""

    rank: int = 0
    how: str = "step"
    number: int = 1


@dataclass(frozen=True)
class Training:
    """What is to be trained, by every rank: arguments of `fit`, and what shall go wrong.

    With `exact` what losses learn is in float64, as the weights of an `ExactEncoder` are.
    """

    root: Path
    arguments: Mapping[str, Any]
    shard: bool = False
    deaths: tuple[Death, ...] = ()
    exact: bool = False


def start(trainings: Sequence[Training], path: Path, ranks: int) -> list[ForkServerProcess]:
    """Start all ranks; `results` and `said` read what they leave at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(list(trainings)))
    return fork(_rank, path, ranks)


def free_port() -> int:
    """A port of this machine that nobody listens to."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def fork(
    work: Callable[[Path, Mapping[str, str]], None], path: Path, ranks: int
) -> list[ForkServerProcess]:
    """Do the work in a process for each rank, forked from one that has imported all."""
    # What torchrun would tell each process.
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    told = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.ranked_fit", "tests.support.ranked_imports"])
    processes = [context.Process(target=work, args=(path, one)) for one in told]
    for process in processes:
        process.start()
    return processes


def codes(processes: Sequence[ForkServerProcess]) -> list[int | None]:
    """How the ranks ended; None for one that hangs."""
    end = time.monotonic() + LIMIT
    for process in processes:
        process.join(max(0.1, end - time.monotonic()))
    found = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    return found


def said(path: Path, rank: int) -> str:
    """What a rank wrote to standard error."""
    return path.with_suffix(f".{rank}.err").read_text()


def run(trainings: Sequence[Training], path: Path, ranks: int) -> list[dict[str, Any]]:
    """Run trainings to their end: of each the losses, as they were logged, and the result."""
    ended = codes(start(trainings, path, ranks))
    assert not any(ended), f"{ended}\n" + "\n".join(said(path, rank) for rank in range(ranks))
    return results(path)


def results(path: Path) -> list[dict[str, Any]]:
    """What trainings that ran to their end left."""
    found: list[dict[str, Any]] = pickle.loads(path.with_suffix(".out").read_bytes())
    return found


def _rank(path: Path, told: Mapping[str, str]) -> None:
    from emberge.errors import EmbergeError
    from emberge.ranks import leave_ranks

    rank = enter(path, told)
    try:
        found = [_train(training, rank) for training in pickle.loads(path.read_bytes())]
    except EmbergeError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    if rank == 0:
        path.with_suffix(".out").write_bytes(pickle.dumps(found))
    leave_ranks()


def enter(path: Path, told: Mapping[str, str]) -> int:
    """Prepare a forked process; its rank."""
    import torch

    os.environ.update(told)
    rank = int(told.get("RANK", 0))
    os.dup2(os.open(path.with_suffix(f".{rank}.err"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    torch.set_num_threads(1)
    return rank


def _train(training: Training, rank: int) -> dict[str, Any]:
    from tests.support.exact import in_float64
    from tests.support.fitting import run_fit

    losses: list[float] = []
    deaths = [death for death in training.deaths if death.rank == rank]
    dying: list[Death] = []
    for death in deaths:
        if death.how == "flush":
            _die_at_flush(death.number)

    def told(name: str, value: float, step: int) -> None:
        if name == "loss":
            losses.append(value)

    def progress(done: int, total: int, unit: str, note: str = "") -> None:
        for death in deaths:
            if (death.how, unit) == ("step", "steps") and done >= death.number:
                # During the next step, or after it if this thread is given no time before.
                threading.Timer(0, _die).start() if death not in dying else _die()
                dying.append(death)

    # Ranks that are not the first write no result: a folder that cannot be made would tell.
    root = training.root if rank == 0 else Path(os.devnull)
    with in_float64() if training.exact else contextlib.nullcontext():
        result = run_fit(
            **training.arguments,
            folder=root / "out",
            work=training.root / "work",
            store=training.root / "store",
            progress=progress,
            metric=told,
            ranks=int(os.environ["WORLD_SIZE"]),
            shard=training.shard,
        )
    return {"losses": losses, "result": result}


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_at_flush(number: int) -> None:
    """End this process at the n-th flush of what saves a state or a model."""
    from emberge.files import atomic

    plain, flushes = atomic.sync, itertools.count(1)

    def counted(*given: Any) -> None:
        if next(flushes) == number:
            _die()
        plain(*given)

    atomic.sync = counted
