"""Steps, the contexts in which they are checked and run, and launchers, which run them in processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from emberge.contracts.option import Count
from emberge.contracts.reference import ArtifactKind, DataRef, FileRef, ModelRef, Reference, StepRef
from emberge.contracts.result import Artifact, Model
from emberge.contracts.similarity import EmbeddingKind

if TYPE_CHECKING:
    from emberge.contracts.dataset import Reader, Split, TaskKind
    from emberge.errors import Problem


@dataclass(frozen=True, slots=True)
class Machine:
    """Devices, workers and memory of a machine; they affect speed but never the bytes.

    `ranks` is the number of processes that run this step together (see `Step.every_rank`). With `shard` they
    split the weights and the optimizer among them.
    """

    devices: tuple[str, ...] = ("cpu",)
    workers: int = 1
    memory: int | None = None
    ranks: int = 1
    shard: bool = False

    @property
    def device(self) -> str:
        """The first device, for work that runs on one."""
        return self.devices[0]


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected result of a step, as far as it is known before the step runs.

    `checkpoints` is the largest number of models that `$id.checkpoints` can stand for. `sets` maps the name
    of each evaluation set to its kind of task, and `splits` are the parts of the data that can be evaluated;
    None if these are not known. `is_static` is True for a model that has no transformer.
    """

    checkpoints: int | None = None
    sets: Mapping[str, TaskKind] = field(default_factory=dict)
    splits: tuple[Split, ...] | None = None
    is_static: bool = False


NoteLines = Sequence[str] | Callable[[], Iterable[str]]
"""The lines of a note, or a function that returns them, which is called only if the note is shown."""


class StepContext(Protocol):
    """The context of a step, in its `check` and in its `run`."""

    @property
    def readers(self) -> Sequence[Reader]:
        """All installed readers of data files."""

    @property
    def plugins(self) -> Any:
        """The loaded `Plugins`, including those of `--plugin`, to look up components in."""


class Preflight(StepContext, Protocol):
    """The context of a step's `check`: headers and configs, never weights."""

    @property
    def deep(self) -> bool:
        """True if the network may be used."""

    def where(self, option: str = "") -> str:
        """Return `file:line` of one of the step's options."""

    def model(self, reference: ModelRef, *, weights: bool = True) -> Path | None:
        """Return a model's folder with at least configs and tokenizer files; weights if it is local.

        The result is None for a model that does not exist yet or cannot be seen. The context notes the
        missing model itself, and then shows no other notes of the step. `weights=False` asks for no weights.
        """

    def whole_model(self, reference: ModelRef) -> Path | None:
        """Return the folder, as `model` does, of a model that the step will open with its adapter applied.

        The context itself notes an adapter that does not fit its base, and a config, module or tokenizer
        with which the weights cannot be opened.
        """

    def adapter(self, reference: ModelRef) -> Path | None:
        """Return the folder of the adapter in `model+adapter`; None if there is none yet."""

    def adapted_model(self, reference: ModelRef) -> ModelRef | None:
        """Return the model that the adapter of an earlier step adapts; None for any other reference."""

    def name(self, reference: ModelRef) -> str:
        """Return the name of a model as the run has it; the reference's text if the model is not found."""

    def data(self, reference: DataRef | FileRef) -> Path | None:
        """Return the file or folder; None if an earlier step has not written it yet."""

    def problem(self, message: str, option: str = "") -> Problem:
        """Return an error at an option of this step."""

    def warning(self, message: str, option: str = "") -> Problem:
        """Return a warning at an option of this step."""

    def note(self, title: str, lines: NoteLines) -> None:
        """Show lines under a title, next to the problems: a plan, a first example."""

    def keep_plan(self, plan: Any) -> None:
        """Keep a plan for this step's run, which finds it as `kept_plan` if it is in the same process."""

    def expect(self, expected: Expected) -> None:
        """Announce this step's result, for `expected` in later steps."""

    def expected(self, reference: Reference) -> Expected | None:
        """Return the result announced by an earlier step; None if it announced none."""


class Workspace(StepContext, Protocol):
    """The context of a step's `run`: its folders, inputs, and progress listeners."""

    @property
    def id(self) -> str:
        """The step's id."""

    @property
    def folder(self) -> Path:
        """The folder to fill with the result, published by one rename when `run` returns.

        The folder exists and is empty when `run` begins, also after a kill.
        """

    @property
    def work(self) -> Path:
        """A folder for states, which survives a kill and is removed when the step is done."""

    @property
    def store(self) -> Path:
        """A content-addressed cache that all steps of an OUT share (tokens, scores)."""

    @property
    def seed(self) -> int:
        """The seed: the step's option `seed` if it has one and it is not None, else the recipe's."""

    @property
    def machine(self) -> Machine:
        """The devices, workers and memory that the step may use."""

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Recipe hash, seed and versions, for the headers of written files."""

    @property
    def kept_plan(self) -> Any:
        """The plan that this step's check kept; None if there is none in this process."""

    def model(self, reference: ModelRef) -> Model:
        """Return the one model that a reference leads to, downloaded if need be."""

    def models(self, reference: ModelRef) -> Sequence[Model]:
        """Return all models that a reference leads to (`$run.checkpoints` may be many)."""

    def whole_model(self, model: Model) -> AbstractContextManager[Path]:
        """Return a context with the model's folder; for `base+adapter` a folder with the adapted model.

        The adapted model is stored in float32, and its folder is removed when the context ends.

        Raises:
            CheckpointError: on entering the context, if the adapter does not fit its base or the disk is
                full.
        """

    def data(self, reference: DataRef | FileRef) -> Path:
        """Return the file or folder that a reference leads to."""

    def artifact(self, reference: Reference) -> tuple[Path, Artifact]:
        """Return an earlier step's folder and artifact."""

    def progress(self, done: float, total: float, unit: str = "", note: str = "") -> None:
        """Report how far the step is; cheap to call often, forwarded at most five times a second.

        With a `total` of 0, the note names a phase of unknown length, such as `loading rows`; it is always
        forwarded.
        """

    def part(
        self, noun: str, number: int, count: int, name: str = ""
    ) -> AbstractContextManager[None]:
        """Run a `with` block as part `number`, from 1, of `count`; with a `name`, progress names the part.

        Progress within the block is a share of the part, its note begins with `model 2 of 3: name`, and the
        step's progress never decreases from the first part to the last. Parts can be nested.
        """

    def metric(self, name: str, value: float, at: int | None = None) -> None:
        """Log a number, such as a loss at an optimizer step."""

    def warn(self, message: str) -> None:
        """Show a warning now, and keep it with the artifact."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step, which turns input folders into one result folder. Fields are its YAML options."""

    produces: ClassVar[ArtifactKind] = "file"
    revision: ClassVar[int] = 1
    """Raised by the author when the bytes of the result change, and only then."""
    every_rank: ClassVar[bool] = False
    """True if every rank (`machine.ranks`) calls `run`; otherwise only the first rank does."""
    embedding_kinds: ClassVar[frozenset[EmbeddingKind]] = frozenset({"vector"})
    """Kinds of embeddings that the step can use; backbones of other kinds are refused before it runs."""

    @property
    def loads(self) -> tuple[str, ...]:
        """Modules that `run` needs and whose import takes long: imported while large inputs are hashed."""
        return ()

    def expand(self) -> Mapping[str, Step]:
        """Return the independent steps (all pairs, a grid) by name, in place of this one; default: itself."""
        return {"": self}

    def gather(self, parts: Mapping[str, StepRef]) -> Step | None:
        """Return a step that joins the results of `expand`, given by name; default: none.

        `$id` then means that step's result, and other steps cannot refer to the parts.
        """
        return None

    def identity(self) -> str:
        """Return what decides the result besides recipe and inputs, such as versions; default: nothing.

        The text is part of the step's fingerprint: if it changes, the step runs again.
        """
        return ""

    def find_adapted_model(self) -> ModelRef | None:
        """Return the model that the result adapts, or another adapter of its base; None for a whole model.

        `$step` then means the base with the resulting adapter on it.
        """
        return None

    def list_upload_places(self) -> Sequence[str]:
        """Return the places outside this machine to which `run` sends data; default: none.

        A run with such a step needs the user's permission (`--allow-upload`).
        """
        return ()

    def check(self, context: Preflight) -> Iterable[Problem]:
        """Return the problems found from configs, headers and first rows of data."""
        return ()

    def run(self, workspace: Workspace) -> Artifact:
        """Do the work, writing only under `workspace.folder` and `workspace.work`."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """A launcher, which runs each step in a process as soon as its inputs are finished.

    Its fields are the options in `--launcher 'name: {options}'`. They decide the speed and never the result,
    except `threads`: float32 sums change with the number of threads that add them up. Every step gets this
    number, so a recipe gives the same bytes under each launcher, with any number of workers, and in a run
    without a launcher on as many threads (`OMP_NUM_THREADS`).
    """

    threads: Count = 1
    """CPU threads of a step's sums; merges also use idle cores, which changes no byte."""

    def run_steps(self, run: Any) -> None:
        """Run every step of a `RecipeRun` that can run; errors of steps are recorded in `run`.

        `emberge_local.PoolLauncher` does so by a pool of processes, which a launcher opens.

        Raises:
            EmbergeError: if the launcher cannot start.
        """
        raise NotImplementedError
