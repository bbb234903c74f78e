"""Events of a run, which every plugin with the hook `hear_event` gets as they happen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge.contracts.result import Artifact


@dataclass(frozen=True, slots=True)
class Event:
    """An event of the run into the folder `out`; one process may have several runs."""

    out: Path


@dataclass(frozen=True, slots=True)
class RunStarted(Event):
    """The begin of a run of these steps, in the order in which they will run.

    `recipe` is the recipe's file, if it has one. `quiet` asks reporters to print nothing.
    """

    recipe: Path | None
    steps: tuple[str, ...]
    quiet: bool


@dataclass(frozen=True, slots=True)
class StepEvent(Event):
    """An event of the step with this id."""

    step: str


@dataclass(frozen=True, slots=True)
class StepStarted(StepEvent):
    """A step begins, or continues after `saved_step`; `kind` is the full name of its component."""

    kind: str
    fingerprint: str
    saved_step: int | None = None
    """Optimizer step of the newest state of the step's training; None without one."""

    @property
    def beginning(self) -> str:
        """The event in words."""
        saved = self.saved_step
        return "started" if saved is None else f"goes on after optimizer step {saved:,}"


@dataclass(frozen=True, slots=True)
class StepProgressed(StepEvent):
    """A step did `done` of `total` units; announced at most five times a second."""

    done: float
    total: float
    unit: str
    note: str


@dataclass(frozen=True, slots=True)
class MetricLogged(StepEvent):
    """A step logged a number, such as a loss, `at` an optimizer step."""

    name: str
    value: float
    at: int | None


@dataclass(frozen=True, slots=True)
class StepWarned(StepEvent):
    """A step warned the user."""

    message: str


@dataclass(frozen=True, slots=True)
class ResultEvent(StepEvent):
    """An event of a step that has a result; `folder` is the link to it in `out`."""

    folder: Path
    artifact: Artifact


@dataclass(frozen=True, slots=True)
class StepSkipped(ResultEvent):
    """A step was finished by an earlier run."""


@dataclass(frozen=True, slots=True)
class StepFilled(ResultEvent):
    """A step filled `folder`, its work folder's output, which is published next.

    A listener may add a file to it, such as a card. The event is announced where the step runs, which may be
    another process. `provenance` is what artifact.json tells of the step, and `origin` the folder at which
    relative references of its recipe start.
    """

    provenance: Mapping[str, Any]
    origin: Path


@dataclass(frozen=True, slots=True)
class StepFinished(ResultEvent):
    """A step's result was published after `seconds` of work."""

    seconds: float


@dataclass(frozen=True, slots=True)
class StepFailed(StepEvent):
    """A step ended with an error."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class RunFinished(Event):
    """The end of a run, well or with an error; `results` has the link to each finished step's result."""

    error: BaseException | None
    results: Mapping[str, Path]
    failed: Mapping[str, str]
    """The message of each failed step's error."""
    blocked: tuple[str, ...]
    """The steps that did not run because they need a failed step."""
