"""One step while it runs: its workspace, and the publishing of its result by one rename."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import importlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge.contracts import (
    Artifact,
    DataRef,
    Event,
    FileRef,
    Machine,
    MetricLogged,
    Model,
    ModelRef,
    Reader,
    Reference,
    StepFilled,
    StepFinished,
    StepProgressed,
    StepWarned,
)
from emberge.errors import EmbergeError, PluginError
from emberge.files import FileLock, make_folder, write_json
from emberge.hashes import noting_hashes
from emberge.interpreter import pause_collections, refuse_exits, return_freed_memory
from emberge.plugins import Plugins
from emberge.recipes.recipe import Recipe, RecipeStep
from emberge.recipes.run.run_log import JsonLineFile
from emberge.recipes.run.step_progress import StepProgress, Timer
from emberge.recipes.targets import Targets
from emberge.results import (
    ARTIFACT,
    PROGRESS,
    OutFolder,
    build_artifact_record,
    read_artifact,
    read_record,
)
from emberge.tensor_files import read_versions

_METRICS = "metrics.jsonl"
_WARNINGS = "warnings.jsonl"
_EVENT_SECONDS = 0.2  # between two progress events
_FILE_SECONDS = 1.0  # between two writes of progress.json
LEAVING_SECONDS = 20.0
"""Seconds to wait for another process that worked on the same step and is ending."""


@dataclass(frozen=True)
class RunContext:
    """Folders, results and settings that all steps of a run share."""

    out_folder: OutFolder
    targets: Targets
    record: Callable[[Event], None]
    """The function that takes each event of the steps."""
    machine: Machine
    recipe: Recipe
    plans: Mapping[str, Any] = field(default_factory=dict)
    """The plans that the steps' checks kept, by step."""


def run_step(
    step: RecipeStep,
    fingerprint: str,
    context: RunContext,
    surroundings: AbstractContextManager[Any] | None = None,
) -> StepFinished:
    """Run a step from where it was interrupted, and publish its result by one rename.

    The step runs inside the context manager `surroundings`, unless it is None. `OutFolder.finish_step` then
    links `OUT/<id>` to the result and removes the work folder.

    Raises:
        OutInUseError: if another process still works on this step.
    """
    began = time.monotonic()
    out_folder = context.out_folder
    work = out_folder.locate_work(step.id, fingerprint)
    with explain_disk_full(out_folder):
        make_folder(work)
        # No other process may work on the step, even one on a machine that was assumed lost.
        with FileLock(work / ".lock").lock(patience=LEAVING_SECONDS):
            import_modules(step.step.loads)
            with contextlib.closing(StepRun(step, fingerprint, context)) as step_run:
                artifact, seconds = step_run.fill_and_publish(surroundings, began)
    return StepFinished(out_folder.path, step.id, out_folder.link(step.id), artifact, seconds)


def find_result(out_folder: OutFolder, step: str, fingerprint: str) -> Artifact | None:
    """Return the artifact of the step's result with this fingerprint; None if there is no result."""
    folder = out_folder.locate_result(step, fingerprint)
    record = read_record(folder / ARTIFACT)
    return read_artifact(folder) if record.get("fingerprint") == fingerprint else None


@contextmanager
def explain_disk_full(out_folder: OutFolder) -> Iterator[None]:
    """Turn the OSError of a full disk into an EmbergeError that names OUT and the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise EmbergeError(out_folder.describe_full_disk()) from error


def import_modules(names: Iterable[str]) -> None:
    """Import modules by name; ignore errors, which the code that needs the module reports."""
    missing = [name for name in names if name not in sys.modules]
    if not missing:
        return
    with pause_collections(freeze=True):
        for name in missing:
            with contextlib.suppress(Exception):  # a module may raise anything when it is imported
                importlib.import_module(name)


@dataclass
class StepRun:
    """One running step: its folders, models and settings (a `Workspace`), and how its result is published."""

    step: RecipeStep
    fingerprint: str
    context: RunContext
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._metrics = JsonLineFile(self.work / f".{_METRICS}")
        self._kept_warnings = JsonLineFile(self.work / f".{_WARNINGS}")
        self.warnings += [row["message"] for row in JsonLineFile.read(self._kept_warnings.path)[0]]
        self._event, self._file = Timer(_EVENT_SECONDS), Timer(_FILE_SECONDS)
        self._warned: set[str] = set()
        self._since: tuple[float, float] | None = None
        self._lock = threading.Lock()
        self._progress = StepProgress(self._forward_progress)

    def close(self) -> None:
        """Close the files, and return freed memory to the system."""
        self._metrics.close()
        self._kept_warnings.close()
        return_freed_memory()

    def fill_and_publish(
        self, surroundings: AbstractContextManager[Any] | None, began: float
    ) -> tuple[Artifact, float]:
        """Run the step in an empty folder and publish it; return the artifact and seconds since `began`."""
        _clear_folder(self.folder)
        with noting_hashes(self.context.targets.hashes):
            artifact = self._run_step(surroundings)
        self._write_metrics()
        self._announce_filled(artifact)
        seconds = time.monotonic() - began
        self._publish(artifact, seconds)
        return artifact, seconds

    def _run_step(self, surroundings: AbstractContextManager[Any] | None) -> Artifact:
        """Run the step and return its artifact, with all warnings of the step."""
        with surroundings or contextlib.nullcontext(), refuse_exits(f"step '{self.id}'"):
            artifact = self.step.step.run(self)
        if not isinstance(artifact, Artifact):
            raise PluginError(f"{self.step.kind}.run must return an Artifact, not {artifact!r}")
        warnings = tuple(dict.fromkeys((*artifact.warnings, *self.warnings)))
        return dataclasses.replace(artifact, warnings=warnings)

    def _announce_filled(self, artifact: Artifact) -> None:
        """Announce that the folder is filled: a listener may add a file to it now, such as a card."""
        recipe = self.context.recipe.path
        origin = recipe.parent.resolve() if recipe is not None else Path.cwd()
        out = self.context.out_folder.path
        event = StepFilled(out, self.id, self.folder, artifact, self.provenance, origin)
        self.plugins.announce(event)

    def _publish(self, artifact: Artifact, seconds: float) -> None:
        """Write `artifact.json` with the hash of each file, and publish the folder."""
        files = self.context.targets.hashes.list_contents(self.folder, leave_out=ARTIFACT)
        inputs = self.context.targets.list_inputs(self.step.step)
        record = build_artifact_record(artifact, self.provenance, inputs, files, seconds)
        self.context.out_folder.publish_result(self.id, self.fingerprint, record)

    def _write_metrics(self) -> None:
        """Write the step's metrics into its result; of rows with equal `name` and `at`, only the last."""
        rows, _ = JsonLineFile.read(self._metrics.path)
        if not rows:
            return
        latest = {(row["name"], row["at"]): row for row in rows}
        (self.folder / _METRICS).unlink(missing_ok=True)
        with contextlib.closing(JsonLineFile(self.folder / _METRICS)) as lines:
            for row in latest.values():
                lines.append(row)

    # ── what the step asks for ──────────────────────────────────────────────────────────────────

    @property
    def id(self) -> str:
        return self.step.id

    @property
    def work(self) -> Path:
        return self.context.out_folder.locate_work(self.step.id, self.fingerprint)

    @property
    def folder(self) -> Path:
        return self.work / "output"

    @property
    def store(self) -> Path:
        return self.context.out_folder.store

    @property
    def seed(self) -> int:
        step_seed = getattr(self.step.step, "seed", None)
        return self.context.recipe.seed if step_seed is None else step_seed

    @property
    def machine(self) -> Machine:
        return self.context.machine

    @property
    def readers(self) -> Sequence[Reader]:
        return self.plugins.build_every("reader")

    @property
    def plugins(self) -> Plugins:
        return self.context.targets.plugins

    @property
    def provenance(self) -> Mapping[str, Any]:
        """The result's provenance: step, fingerprint of options, seed and inputs, versions, plugins."""
        recipe = self.context.recipe
        return {
            "step": self.id,
            "kind": self.step.kind,
            "fingerprint": self.fingerprint,
            **({"recipe": recipe.hash} if recipe.hash else {}),
            "seed": recipe.seed,
            "versions": read_versions(),
            "plugins": list_plugins_behind(self.step.step, self.plugins),
        }

    @property
    def kept_plan(self) -> Any:
        return self.context.plans.get(self.id)

    def model(self, reference: ModelRef) -> Model:
        return self.context.targets.model(reference)

    def models(self, reference: ModelRef) -> Sequence[Model]:
        return self.context.targets.models(reference)

    def whole_model(self, model: Model) -> AbstractContextManager[Path]:
        from emberge.merging import open_whole_model  # a plain merge does not need this import

        return open_whole_model(model, self.work, self.machine)

    def data(self, reference: DataRef | FileRef) -> Path:
        return self.context.targets.data(reference)

    def artifact(self, reference: Reference) -> tuple[Path, Artifact]:
        result = self.context.targets.step(reference)
        return result.folder, result.artifact

    # ── what the step reports ───────────────────────────────────────────────────────────────────

    def progress(self, done: float, total: float, unit: str = "", note: str = "") -> None:
        self._progress.report(done, total, unit, note)

    def part(
        self, noun: str, number: int, count: int, name: str = ""
    ) -> AbstractContextManager[None]:
        return self._progress.part(noun, number, count, name)

    def _forward_progress(self, done: float, total: float, unit: str, note: str) -> None:
        with self._lock:
            is_event_due = self._event.is_due() or not total
            is_file_due = self._file.is_due() or not total
            if self._since is None or done < self._since[1]:  # a new phase: the rate starts again
                self._since = (time.time(), done)
        if is_file_due:
            facts = {"done": done, "total": total, "unit": unit, "note": note}
            snapshot = {**facts, "time": time.time(), "since": self._since}
            write_json(self.work / PROGRESS, snapshot, durable=False)
        if is_event_due:
            out = self.context.out_folder.path
            self.context.record(StepProgressed(out, self.id, done, total, unit, note))

    def metric(self, name: str, value: float, at: int | None = None) -> None:
        row = {"time": round(time.time(), 3), "name": name, "value": float(value), "at": at}
        out = self.context.out_folder.path
        with self._lock:
            self._metrics.append(row)
            self.context.record(MetricLogged(out, self.id, name, float(value), at))

    def warn(self, message: str) -> None:
        with self._lock:
            if message in self._warned:
                return
            self._warned.add(message)
            if message not in self.warnings:  # otherwise it was shown before a kill, and is kept
                self.warnings.append(message)
                self._kept_warnings.append({"message": message})
        self.context.record(StepWarned(self.context.out_folder.path, self.id, message))


def _clear_folder(folder: Path) -> None:
    """Remove files of a run that was killed after it filled its folder and before it was published."""
    for left in folder.iterdir():
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink()


def list_plugins_behind(component: Any, plugins: Plugins) -> dict[str, str]:
    """Map the plugins of a component and its parts to their distribution and version.

    A bare file has no version; in place of it comes the SHA-256 of its content.
    """
    versions_by_plugin = {}
    for added in plugins.map_revisions(component):
        version = f"sha256:{added.source.content}" if added.source.content else added.source.version
        versions_by_plugin[added.source.name] = f"{added.source.distribution} {version}".strip()
    return dict(sorted(versions_by_plugin.items()))
