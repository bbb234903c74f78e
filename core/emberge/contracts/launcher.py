"""Launchers, which run ready steps in parallel, each in a separate process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from emberge.contracts.option import Count
from emberge.contracts.step import Machine


@dataclass(frozen=True, slots=True)
class Launch:
    """One attempt at a step, by a process with access to the same folders.

    `StepProcess(launch, machine, threads)` starts the process. `work` is the step's folder inside OUT, where
    the process writes its events; `log` receives what it prints. The process starts in `folder` and receives
    the `call`, plain values that a launcher need not understand.
    """

    step: str
    work: Path
    log: Path
    folder: Path
    call: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a process: its exit code, negative for a signal, and the last lines that it printed.

    A `code` of None means that the process was lost together with the machine it ran on.
    """

    code: int | None
    last_lines: str = ""


class Launched(Protocol):
    """A step submitted to a pool: waiting, running or ended."""

    def ended(self) -> Ended | None:
        """Return how the process ended; None until it has. It is called several times a second."""
        ...

    def stop(self) -> None:
        """Ask the process to end; `ended` returns None until it has."""
        ...


class StepPool(Protocol):
    """The processes of a launcher while a recipe runs."""

    @property
    def has_room(self) -> bool:
        """True if the pool can take another step now; a pool with its own queue always can."""
        ...

    def launch(self, launch: Launch) -> Launched:
        """Start a step, or queue it.

        Raises:
            EmbergeError: if the step can be neither started nor queued.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """A launcher, which runs each step in a process as soon as its inputs are finished.

    Its fields are the options in `--launcher 'name: {options}'`. They decide the speed and are never in a
    recipe. The exception is `threads`, which every launcher has: float32 sums change with the number of
    threads that add them up. Every step gets the same number of threads, whatever runs at the same time and
    however many cores there are. The same recipe then gives the same bytes under each launcher, with any
    number of workers, and in a run without a launcher on as many threads (`OMP_NUM_THREADS`). A training that
    began with another number of threads keeps that number. Only a training that finds little free memory
    takes smaller chunks, as it does without a launcher; a `token_budget` fixes the size of chunks too.
    """

    threads: Count = 1
    """CPU threads of a step's sums; merges also use idle cores, which changes no byte."""

    def open(self, machine: Machine) -> AbstractContextManager[StepPool]:
        """Open a pool for one run of a recipe; closing it ends all its processes.

        `machine` is what the run may use of this machine.

        Raises:
            EmbergeError: if the pool cannot be opened.
        """
        raise NotImplementedError
