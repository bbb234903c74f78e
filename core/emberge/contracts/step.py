"""Steps: directories in, one directory out; what they are given and what they leave."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from emberge.contracts.preflight import Expected, Preflight

if TYPE_CHECKING:
    from emberge.contracts.dataset import Reader
    from emberge.errors import Problem

__all__ = [
    "Artifact",
    "ArtifactKind",
    "DataRef",
    "Expected",
    "FileRef",
    "Machine",
    "Model",
    "ModelRef",
    "Preflight",
    "Reference",
    "Rehearsal",
    "Step",
    "StepRef",
    "Workspace",
]

# Where an adapter begins: a plus sign before a folder, a hub id or `pkg:`.
_ADAPTER = re.compile(r"\+(?=(?:\.{1,2}|~|[\w.-]+)?/|\w+:)")

ArtifactKind = Literal["model", "data", "scores", "report", "statistics", "file"]


@dataclass(frozen=True, slots=True)
class Reference:
    """Something a recipe names: an earlier step's output (`$id`, `$id.part`) or something outside.

    A step reference's `text` names one concrete instance after `foreach` is expanded
    (`$members.ratio=0.2`); `folder` is what relative paths in `text` are relative to.
    """

    text: str
    folder: Path = field(default=Path(), compare=False, repr=False)
    accepts: ClassVar[tuple[str, ...]] = ()

    @property
    def step(self) -> str | None:
        """The step's id without a part, or None for something outside the recipe."""
        if not self.text.startswith("$"):
            return None
        return self.main[1:].removesuffix(".checkpoints")

    @property
    def part(self) -> str | None:
        """`checkpoints` for the kept states of a training."""
        return "checkpoints" if self.step and self.main.endswith(".checkpoints") else None

    @property
    def main(self) -> str:
        """The text before an adapter."""
        return _ADAPTER.split(self.text, maxsplit=1)[0]

    @property
    def adapter(self) -> str | None:
        """The text after the plus sign of `model+adapter`."""
        _, *adapter = _ADAPTER.split(self.text, maxsplit=1)
        return adapter[0] if adapter else None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class ModelRef(Reference):
    """A model: `./folder`, `owner/name@revision`, `pkg:module`, `$step`, any of them `+adapter`."""

    accepts: ClassVar[tuple[str, ...]] = ("model",)


@dataclass(frozen=True, slots=True)
class DataRef(Reference):
    """A data file or catalogue, or a step that makes data."""

    accepts: ClassVar[tuple[str, ...]] = ("data",)


@dataclass(frozen=True, slots=True)
class FileRef(Reference):
    """A file, or a step that makes one."""

    accepts: ClassVar[tuple[str, ...]] = ("statistics", "file")


@dataclass(frozen=True, slots=True)
class StepRef(Reference):
    """Any earlier step."""

    accepts: ClassVar[tuple[str, ...]] = ("model", "data", "scores", "report", "statistics", "file")


@dataclass(frozen=True, slots=True)
class Artifact:
    """What a step leaves, written as `artifact.json` in its folder by the runner.

    `size` is the number of training examples behind a model (for `weights: size`). `parents` names the
    models it came from. `details` is free JSON that reports and cards read. Paths are relative.

    Two of its keys mean something to the runner: `unmet` lists requirements that do not hold (the result
    is published, then the run ends with `RequirementError`); `table` names a Markdown file of the result
    to show at the end. One means something to reports: `figures` lists drawings to show, each with the
    `file` of an SVG, a `title`, a `caption`, and a `table` (`title`, `head`, `rows`) to put beside.
    """

    kind: ArtifactKind
    size: int | None = None
    parents: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Model:
    """A model that lies on disk: what a ModelRef resolves to.

    `name` is how a person calls it in tables (the step's id, the hub id, the folder's name);
    `fingerprint` hashes its content. With an `adapter` the `folder` is that of its base.
    """

    name: str
    folder: Path
    fingerprint: str
    artifact: Artifact | None = None
    adapter: Path | None = None


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
