"""Steps: directories in, one directory out; what they are given and what they leave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from emberge.contracts.reference import (
    Artifact,
    ArtifactKind,
    DataRef,
    FileRef,
    Model,
    ModelRef,
    Reference,
    StepRef,
)

if TYPE_CHECKING:
    from emberge.contracts.dataset import Reader, Rows
    from emberge.errors import Problem

__all__ = ["Expected", "Machine", "Preflight", "Rehearsal", "Step", "Workspace"]


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Limits under which a step rehearses: everything happens, on very little."""

    steps: int = 2
    rows: int = 64


@dataclass(frozen=True, slots=True)
class Machine:
    """What the machine offers; it decides the speed and never the bytes.

    `ranks` is how many processes run this step together (see `Step.every_rank`); with `shard` they split
    weights and optimizer among them.
    """

    devices: tuple[str, ...] = ("cpu",)
    workers: int = 1
    memory: int | None = None
    ranks: int = 1
    shard: bool = False


@dataclass(frozen=True, slots=True)
class Expected:
    """What a step will leave, as far as it is known before it runs.

    `artifact` holds what is known of the artifact to come; `rows` the row numbers of every dataset that a
    training will see.
    """

    artifact: Artifact
    rows: Mapping[str, Rows] = field(default_factory=dict)


class Preflight(Protocol):
    """What a step may ask while a recipe is checked: headers and configs, never weights."""

    @property
    def deep(self) -> bool:
        """False when no network may be used."""
        ...

    @property
    def readers(self) -> Sequence[Reader]:
        """All installed readers of data files."""
        ...

    def where(self, option: str = "") -> str:
        """`file:line` of one of the step's options."""
        ...

    def model(self, reference: ModelRef, *, weights: bool = True) -> Path | None:
        """Return a folder with at least configs and tokenizer files, and with weights if it is local.

        None for a model that is yet to be made, or that cannot be seen; the context notes that itself, and
        shows no note of a step that names a model which is missing. `weights=False` asks for no weights.
        """
        ...

    def adapter(self, reference: ModelRef) -> Path | None:
        """The folder of the adapter in `model+adapter`; None without one, or when it cannot be seen."""
        ...

    def data(self, reference: DataRef | FileRef) -> Path | None:
        """The file or folder; None when a step is yet to make it."""
        ...

    def problem(self, message: str, option: str = "") -> Problem:
        """An error at an option of this step."""
        ...

    def warning(self, message: str, option: str = "") -> Problem:
        """A warning at an option of this step."""
        ...

    def note(self, title: str, lines: Sequence[str]) -> None:
        """Something that `check` shows beside the problems: a plan, a first example."""
        ...

    def earlier_result(self, reference: Reference) -> Path | None:
        """What an earlier run left of a step, maybe under other options; None without one to look at."""
        ...

    def expect(self, expected: Expected) -> None:
        """Say what this step will leave, for the steps after it to ask about."""
        ...

    def expected(self, reference: Reference) -> Expected | None:
        """What an earlier step said that it will leave; None for one that could not say."""
        ...


class Workspace(Protocol):
    """Where a step runs and whom it tells."""

    @property
    def id(self) -> str:
        """The step's id."""
        ...

    @property
    def folder(self) -> Path:
        """The output folder to fill; published by one rename when `run` returns."""
        ...

    @property
    def work(self) -> Path:
        """A folder that survives a kill and goes away when the step is done: saved states live here."""
        ...

    @property
    def store(self) -> Path:
        """A content-addressed cache that all steps of an OUT share (tokens, scores)."""
        ...

    @property
    def seed(self) -> int:
        """The recipe's seed."""
        ...

    @property
    def machine(self) -> Machine:
        """Devices, workers, memory."""
        ...

    @property
    def rehearsal(self) -> Rehearsal | None:
        """Limits, when this is a rehearsal."""
        ...

    @property
    def readers(self) -> Sequence[Reader]:
        """All installed readers of data files."""
        ...

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Recipe hash, seed, versions: what an output's header should carry."""
        ...

    def model(self, reference: ModelRef) -> Model:
        """The one model that a reference leads to, downloaded if need be."""
        ...

    def models(self, reference: ModelRef) -> Sequence[Model]:
        """All models that a reference leads to (`$run.checkpoints` may be many)."""
        ...

    def data(self, reference: DataRef | FileRef) -> Path:
        """The file or folder that a reference leads to."""
        ...

    def artifact(self, reference: Reference) -> tuple[Path, Artifact]:
        """An earlier step's folder and artifact."""
        ...

    def progress(self, done: float, total: float, unit: str = "", note: str = "") -> None:
        """Say how far the step is; cheap to call often, forwarded at most five times a second."""
        ...

    def metric(self, name: str, value: float, at: int | None = None) -> None:
        """Log a number, such as a loss at an optimizer step."""
        ...

    def warn(self, message: str) -> None:
        """Tell the user now, and keep it with the artifact."""
        ...


@dataclass(frozen=True, kw_only=True)
class Step:
    """Directories in, one directory out. Fields are its YAML options."""

    produces: ClassVar[ArtifactKind] = "file"
    revision: ClassVar[int] = 1
    """Raised by the author when the bytes of the result change, and only then."""
    every_rank: ClassVar[bool] = False
    """Whether `run` is entered on every rank of a run (`machine.ranks`); else the first does it alone."""

    def expand(self) -> Mapping[str, Step]:
        """Into independent steps (all pairs, a grid) by name; default: itself alone."""
        return {"": self}

    def gather(self, parts: Mapping[str, StepRef]) -> Step | None:
        """The step that makes one result of what `expand` gave, each part by its name; default: none.

        It bears the id alone: `$id` is its result, and the parts are its own affair.
        """
        return None

    def identity(self) -> str:
        """What outside the recipe and its inputs the result depends on, such as versions; default: nothing.

        It is part of the step's fingerprint, so a change of it makes the step run again.
        """
        return ""

    def adapts(self) -> ModelRef | None:
        """What the result is an adapter of, or another adapter of the same base; default: a whole model.

        `$step` then means the base with the result on it.
        """
        return None

    def check(self, context: Preflight) -> Iterable[Problem]:
        """Faults that configs, headers and data heads can show."""
        return ()

    def run(self, workspace: Workspace) -> Artifact:
        """Do the work, writing only under `workspace.folder` and `workspace.work`."""
        raise NotImplementedError
