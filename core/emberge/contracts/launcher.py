"""Launchers: where ready steps run, several side by side, each in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from emberge.contracts.step import Machine

__all__ = ["Ended", "Launch", "Launched", "Launcher", "StepPool"]


@dataclass(frozen=True, slots=True)
class Launch:
    """One attempt at a step, for a process that sees the same folders as this one.

    `StepProcess(launch, machine, threads)` starts it. `work` is the step's folder inside OUT, where the
    process writes what happens to it and where `log` takes what it prints; it starts in `folder` and is told
    the `call`, plain values that a launcher need not understand.
    """

    step: str
    work: Path
    log: Path
    folder: Path
    call: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended: its exit code, negative for a signal, and its last words.

    A `code` of None means that the process was lost together with the machine it ran on.
    """

    code: int | None
    last_lines: str = ""


class Launched(Protocol):
    """A step that was given to a crew: it waits for its turn, runs, or has ended."""

    def ended(self) -> Ended | None:
        """How its process ended, None until then; asked several times a second."""
        ...

    def stop(self) -> None:
        """Ask its process to end; `ended` tells when it has."""
        ...


class StepPool(Protocol):
    """What a launcher has open while a recipe runs."""

    @property
    def has_room(self) -> bool:
        """Whether it takes another step now; one that has a queue of its own always does."""
        ...

    def launch(self, launch: Launch) -> Launched:
        """Have a step run.

        Raises:
            EmbergeError: when it cannot be.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """Runs steps whose needs are finished, several side by side, each in a process of its own.

    Its fields are what `--launcher 'name: {options}'` takes; they decide the speed and never stand in a
    recipe. One exception is why they all have `threads`: float32 sums change with the number of threads that
    add them up, so every step gets the same number, whoever runs beside it and on however many cores. The
    same recipe then has the same bytes under each launcher, with any number of workers, and in a run without
    launcher on as many threads (`OMP_NUM_THREADS`); a training that was begun on another number keeps that.
    Only a training that finds little memory free takes smaller chunks, as it does without a launcher; its
    `token_budget` settles that too.
    """

    threads: int = 1
    """CPU threads of a step's sums; merges also use the cores that are left over, which changes no byte."""
    retries: int = 2
    """How often a step goes on from its last state when its process was killed or its machine was lost."""

    least: ClassVar[Mapping[str, int]] = {"threads": 1, "retries": 0}

    def __post_init__(self) -> None:
        for name, least in self.least.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} is {value}, and must be at least {least}")

    def open(self, machine: Machine) -> AbstractContextManager[StepPool]:
        """Open what steps run in, for one run of a recipe; when it closes, none of its processes is left.

        `machine` is what the run may use of this machine.

        Raises:
            EmbergeError: when it cannot be opened.
        """
        raise NotImplementedError
