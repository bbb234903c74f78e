"""A rehearsal of a recipe: all its steps on very little data, to find problems that headers cannot show."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from emberge.contracts import Launcher, Machine, Rehearsal
from emberge.devices import find_machine
from emberge.errors import EmbergeError, RequirementError
from emberge.files import OutInUseError
from emberge.hookspecs import hookimpl
from emberge.plugins import Plugins
from emberge.recipes.recipe import Recipe
from emberge.recipes.run.run_steps import run_steps
from emberge.wording import human_size

if TYPE_CHECKING:
    from emberge.recipes.run.rank_team import RankTeam


@dataclass
class RehearsedStep:
    """The outcome of one rehearsed step, its seconds, and the most memory that it used, in bytes.

    `memory` is the memory of the process, or None if the system does not report it; `device_memory` is the
    memory of the GPU, or None without a GPU.
    """

    id: str
    state: Literal["done", "done before", "failed", "not run"] = "not run"
    seconds: float | None = None
    memory: int | None = None
    device_memory: int | None = None
    message: str = ""
    warnings: list[str] = field(default_factory=list)

    @property
    def line(self) -> str:
        """The outcome as one line for the terminal."""
        parts: list[str] = [self.state]
        if self.seconds is not None:
            parts.append(f"{self.seconds:.1f} s")
        if self.memory is not None:
            parts.append(f"{human_size(self.memory)} of memory at most")
        if self.device_memory is not None:
            parts.append(f"{human_size(self.device_memory)} on the GPU at most")
        return ", ".join(parts) + (f": {self.message}" if self.message else "")


def rehearse(
    recipe: Recipe,
    plugins: Plugins,
    out: Path | None = None,
    *,
    machine: Machine | None = None,
    limits: Rehearsal | None = None,
    quiet: bool = False,
    team: RankTeam | None = None,
    launcher: Launcher | None = None,
) -> tuple[list[RehearsedStep], Exception | None]:
    """Run every step with at most two optimizer steps and 64 rows; results go to `out` or are dropped.

    Returns each step's outcome, and the error that ended the rehearsal, if any. Times and memory are
    measured, not extrapolated: so few steps do not predict the time or memory of the real run. With a `team`,
    this process is its first rank, and only the memory of this process is measured. With a `launcher`, no
    memory is measured.
    """
    machine = machine or find_machine()
    watch = _RehearsalWatch({step.id: RehearsedStep(step.id) for step in recipe.steps}, machine)
    watch.here = launcher is None
    error: Exception | None = None
    with _open_rehearsal_folder(out) as folder, _register_listener(plugins, watch):
        try:
            run_steps(
                recipe,
                folder,
                plugins,
                machine=machine,
                rehearsal=limits or Rehearsal(),
                quiet=quiet,
                team=team,
                launcher=launcher,
            )
        except RequirementError:
            pass  # scores on so few rows are meaningless, so an unmet requirement is ignored
        except OutInUseError:
            raise
        except Exception as failure:
            error = failure
    return list(watch.steps.values()), error


class _RehearsalWatch:
    """The listener that keeps each step's outcome and measures memory between its start and end."""

    def __init__(self, steps: dict[str, RehearsedStep], machine: Machine) -> None:
        self.steps = steps
        self._devices = [d for d in machine.devices if d.startswith("cuda")]
        self._began: dict[str, float] = {}
        self.here = True  # steps run in this process, whose memory is measured

    @hookimpl
    def step_started(self, step: str) -> None:
        """Start to measure time and memory."""
        self._began[step] = time.monotonic()
        if not self.here:
            return
        _reset_peak_memory()
        for device in self._list_torch_devices():
            sys.modules["torch"].cuda.reset_peak_memory_stats(device)

    @hookimpl
    def step_skipped(self, step: str) -> None:
        """Record that the step was rehearsed in this folder before."""
        self.steps[step].state = "done before"

    @hookimpl
    def step_finished(self, step: str) -> None:
        """Record that the step succeeded."""
        self._measure(self.steps[step])
        self.steps[step].state = "done"

    @hookimpl
    def step_failed(self, step: str, error: BaseException) -> None:
        """Record the error that ended the step."""
        self._measure(self.steps[step])
        self.steps[step].state = "failed"
        is_ours = isinstance(error, EmbergeError)
        self.steps[step].message = str(error) if is_ours else f"{type(error).__name__}: {error}"

    @hookimpl
    def step_warned(self, step: str, message: str) -> None:
        """Record a warning of the step."""
        self.steps[step].warnings.append(message)

    def _measure(self, step: RehearsedStep) -> None:
        if step.id not in self._began:
            return  # it failed before it began
        step.seconds = time.monotonic() - self._began.pop(step.id)
        if not self.here:
            return
        step.memory = _read_peak_memory()
        peak_bytes = [
            sys.modules["torch"].cuda.max_memory_allocated(d) for d in self._list_torch_devices()
        ]
        step.device_memory = max(peak_bytes, default=None)

    def _list_torch_devices(self) -> list[str]:
        return self._devices if "torch" in sys.modules else []


def _reset_peak_memory() -> None:
    """Reset the system's measure of this process's peak memory, if the system can (Linux)."""
    try:
        Path("/proc/self/clear_refs").write_text("5", "utf-8")
    except OSError:
        return


def _read_peak_memory() -> int | None:
    try:
        status = Path("/proc/self/status").read_text("utf-8", "replace")
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


@contextmanager
def _open_rehearsal_folder(out: Path | None) -> Iterator[Path]:
    if out is not None:
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="emberge-rehearsal-") as folder:
        yield Path(folder)


@contextmanager
def _register_listener(plugins: Plugins, listener: object) -> Iterator[None]:
    plugins.manager.register(listener)
    try:
        yield
    finally:
        plugins.manager.unregister(listener)
