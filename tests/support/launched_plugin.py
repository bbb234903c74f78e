"""Steps and a loss for tests of launchers, as a bare plugin file: some die, some wait, some fail."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge import (
    Artifact,
    DataError,
    Embeddings,
    Loss,
    ModelRef,
    Step,
    StepRef,
    Workspace,
    hookimpl,
)

# Names a file that the first process to find it takes away and dies.
POISON = "EMBERGE_TEST_POISON"
# Names a file that trainings wait for, once in each process, to be taken away.
GATE = "EMBERGE_TEST_GATE"


def die_once() -> None:
    """End this process by SIGKILL if nobody has before."""
    with contextlib.suppress(FileNotFoundError):  # another process took it
        Path(os.environ.get(POISON) or "nothing").unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def wait_at_gate() -> None:
    """Say beside the gate that this process is there, and wait until it is open."""
    gate = Path(os.environ.get(GATE) or "nothing")
    if gate.exists():
        gate.with_name(f"at-{os.getpid()}").touch()
    while gate.exists():
        time.sleep(0.02)


_calls = 0


@dataclass(frozen=True, kw_only=True)
class Mortal(Loss):
    """Pull positives close; wait at the gate at the tenth batch, and die of poison at the twentieth."""

    def __call__(self, embeddings: Embeddings) -> Any:
        global _calls
        _calls += 1
        if _calls == 10:
            wait_at_gate()
        if _calls == 20:
            die_once()
        anchor, positive = embeddings.anchor, embeddings.positive[:, 0]
        return (anchor - positive).square().mean() + 0.01 * anchor.square().mean()


@dataclass(frozen=True, kw_only=True)
class Wait(Step):
    """Count to a hundred, two a second, or to `ticks`; say and log each number."""

    produces = "file"
    name: str = ""
    ticks: int = 100
    every: float = 0.5
    of: tuple[StepRef, ...] = ()

    def run(self, workspace: Workspace) -> Artifact:
        done = workspace.work / "done"
        first = int(done.read_text()) if done.exists() else 0
        for tick in range(first, self.ticks):
            workspace.progress(tick, self.ticks, "ticks", self.name)
            workspace.metric("tick", tick, tick)
            done.write_text(str(tick))
            time.sleep(self.every)
        workspace.warn(f"{self.name} has waited")
        (workspace.folder / "name").write_text(self.name)
        threads = os.environ.get("OMP_NUM_THREADS")
        return Artifact("file", details={"began_at": first, "threads": threads})


@dataclass(frozen=True, kw_only=True)
class Fail(Step):
    """Fail in one of several ways."""

    produces = "file"
    how: str
    of: tuple[ModelRef, ...] = ()

    def run(self, workspace: Workspace) -> Artifact:
        with (workspace.work / "tries").open("a") as tries:
            tries.write("x")
        if self.how == "data":
            raise DataError("rows.jsonl:3: no anchor")
        if self.how == "bug":
            raise ValueError("a bug")
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


@hookimpl
def register_steps() -> Mapping[str, type[Step]]:
    return {"wait": Wait, "fail": Fail}


@hookimpl
def register_losses() -> Mapping[str, type[Loss]]:
    return {"mortal": Mortal}
