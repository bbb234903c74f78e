"""The `local` launcher: steps side by side on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from emberge import Count, Machine
from emberge.devices import measure_memory
from emberge.wording import parse_size

from emberge_local.pool_launcher import Launch, Launched, PoolLauncher, StepPool
from emberge_local.step_process import StepProcess


@dataclass(frozen=True, kw_only=True)
class Local(PoolLauncher):
    """Launcher of steps side by side on this machine, each in its own process.

    As many steps run at a time as there are GPUs, and each step gets one GPU; without GPUs, as many steps as
    there are pairs of cores. Cores and `--memory` are divided among the steps. A step whose process is killed
    continues from its last state. Ctrl-C ends all steps, and no step runs on after the run.

    Example:
        emberge run recipe.yaml --out out --launcher local
        emberge run recipe.yaml --out out --launcher '{local: {workers: 4}}'
    """

    workers: Count | None = None
    """Steps that run at a time; with more than there are GPUs, some share one."""
    memory: str | None = None
    """Memory that a step may need, such as 4GB. No more steps run at a time than fit into `--memory`, by
    default this machine's memory."""

    def places(self, machine: Machine) -> list[Machine]:
        """Return the part of the machine for each of the steps that run at a time.

        Raises:
            RecipeError: if `memory` is not a size such as 4GB.
        """
        gpus = [device for device in machine.devices if device != "cpu"]
        count = self.workers or len(gpus) or max(1, machine.workers // max(2, self.threads))
        memory_per_place = parse_size(self.memory) if self.memory else None
        if memory_per_place is not None:
            count = max(1, min(count, (machine.memory or measure_memory()) // memory_per_place))
        elif machine.memory is not None:
            memory_per_place = machine.memory // count
        part = dataclasses.replace(
            machine, workers=max(1, machine.workers // count), memory=memory_per_place
        )
        return [
            dataclasses.replace(part, devices=(gpus[i % len(gpus)] if gpus else "cpu",))
            for i in range(count)
        ]

    @contextlib.contextmanager
    def open(self, machine: Machine) -> Iterator[StepPool]:
        pool = _Places(self.places(machine), self.threads)
        try:
            yield pool
        finally:
            pool.end()


class _Places:
    """Pool of places on the machine, each of which runs one process at a time."""

    def __init__(self, places: list[Machine], threads: int) -> None:
        self._places = places
        self._threads = threads
        self._at: dict[int, StepProcess] = {}

    @property
    def has_room(self) -> bool:
        return self._free() is not None

    def launch(self, launch: Launch) -> Launched:
        place = self._free()
        assert place is not None, "asked for room before"
        self._at[place] = StepProcess(launch, self._places[place], self._threads)
        return self._at[place]

    def end(self) -> None:
        """Kill all processes."""
        for process in self._at.values():
            process.kill()

    def _free(self) -> int | None:
        ended = (i for i, _ in enumerate(self._places) if self._is_free(i))
        return next(ended, None)

    def _is_free(self, place: int) -> bool:
        return place not in self._at or self._at[place].ended() is not None
