"""One step while it runs: its workspace, its progress, and the publishing of its result by one rename."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import importlib
import json
import os
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
from emberge.recipes.fingerprints import list_inputs
from emberge.recipes.recipe import Recipe, RecipeStep
from emberge.recipes.run.run_log import JsonLineFile
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
from emberge.wording import make_plural

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
    with explain_disk_full(out_folder, work):
        make_folder(work)
        # No other process may work on the step, even one on a machine that was assumed lost.
        with FileLock(work / ".lock").lock(patience=LEAVING_SECONDS):
            import_modules(step.step.loads)
            step_run = StepRun(step, fingerprint, context, work / "output")
            artifact = step_run.fill(surroundings)
            seconds = time.monotonic() - began
            step_run.publish(artifact, seconds)
    return StepFinished(
        out_folder.path, step.id, out_folder.locate_link(step.id), artifact, seconds
    )


def find_finished_artifact(out_folder: OutFolder, step: str, fingerprint: str) -> Artifact | None:
    """Return the artifact of the step's result with this fingerprint; None if there is no result."""
    folder = out_folder.locate_result(step, fingerprint)
    record = read_record(folder / ARTIFACT)
    return read_artifact(folder) if record.get("fingerprint") == fingerprint else None


@contextmanager
def explain_disk_full(out_folder: OutFolder, work: Path | None = None) -> Iterator[None]:
    """Turn a library's error about a full disk into an EmbergeError that names OUT and the remedy."""
    try:
        yield
    except EmbergeError:
        raise
    except Exception as error:  # safetensors has a class of its own
        codes = (errno.ENOSPC, errno.EDQUOT)
        texts = map(os.strerror, codes)
        if getattr(error, "errno", None) not in codes and not any(t in str(error) for t in texts):
            raise
        raise EmbergeError(out_folder.describe_full_disk(work)) from error


def import_modules(names: Iterable[str]) -> None:
    """Import modules by name; ignore errors, which the code that needs the module reports."""
    missing = [name for name in names if name not in sys.modules]
    if not missing:
        return
    with pause_collections(freeze=True):
        for name in missing:
            with contextlib.suppress(Exception):  # a module may raise anything when it is imported
                importlib.import_module(name)


class StepRun:
    """One running step: its inputs and settings (a `Workspace`), and how its result is published."""

    def __init__(
        self, step: RecipeStep, fingerprint: str, context: RunContext, folder: Path
    ) -> None:
        recipe, step_seed = context.recipe, getattr(step.step, "seed", None)
        self.step, self.fingerprint, self.context = step, fingerprint, context
        self.id, self.folder, self.machine = step.id, folder, context.machine
        self.plugins, self.kept_plan = context.targets.plugins, context.plans.get(step.id)
        self.work = context.out_folder.locate_work(step.id, fingerprint)
        self.store = context.out_folder.store
        self.seed: int = recipe.seed if step_seed is None else step_seed
        self.provenance = {
            "step": step.id,
            "kind": step.kind,
            "fingerprint": fingerprint,
            **({"recipe": recipe.hash} if recipe.hash else {}),
            "seed": recipe.seed,
            "versions": read_versions(),
            "plugins": list_plugins_behind(step.step, self.plugins),
        }
        self.warnings: list[str] = []
        self._metrics: JsonLineFile  # opened by `fill`
        self._kept_warnings: JsonLineFile
        self._warned: set[str] = set()
        self._next_event_time = self._next_file_time = 0.0
        self._rate_start: tuple[float, float] | None = None
        self._lock = threading.Lock()
        self._progress = StepProgress(self._forward_progress)

    def fill(self, surroundings: AbstractContextManager[Any] | None) -> Artifact:
        """Run the step in an empty folder and return its artifact, with all warnings of the step."""
        # A run that was killed before it published the folder may have left files in it.
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(return_freed_memory)
            self._metrics = JsonLineFile(self.work / f".{_METRICS}")
            cleanup.callback(self._metrics.close)
            self._kept_warnings = JsonLineFile(self.work / f".{_WARNINGS}")
            cleanup.callback(self._kept_warnings.close)
            kept_rows, _ = JsonLineFile.read(self._kept_warnings.path)
            self.warnings += [row["message"] for row in kept_rows]
            with (
                noting_hashes(self.context.targets.hashes),
                surroundings or contextlib.nullcontext(),
                refuse_exits(f"step '{self.id}'"),
            ):
                artifact = self.step.step.run(self)
        if not isinstance(artifact, Artifact):
            raise PluginError(f"{self.step.kind}.run must return an Artifact, not {artifact!r}")
        rows, _ = JsonLineFile.read(self._metrics.path)
        if rows:
            self._write_metrics(rows)
        warnings = tuple(dict.fromkeys((*artifact.warnings, *self.warnings)))
        return dataclasses.replace(artifact, warnings=warnings)

    def publish(self, artifact: Artifact, seconds: float) -> None:
        """Announce that the folder is filled, write `artifact.json` with the hash of each file, and publish.

        A listener may add a file to the folder before it is published, such as a card.
        """
        recipe_path, out_folder = self.context.recipe.path, self.context.out_folder
        origin = recipe_path.parent.resolve() if recipe_path is not None else Path.cwd()
        self.plugins.announce(
            StepFilled(out_folder.path, self.id, self.folder, artifact, self.provenance, origin)
        )
        files = self.context.targets.hashes.list_contents(self.folder, leave_out=ARTIFACT)
        inputs = list_inputs(self.step.step, self.context.targets)
        record = build_artifact_record(artifact, self.provenance, inputs, files, seconds)
        out_folder.publish_result(self.id, self.fingerprint, record)

    def _write_metrics(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write metrics into the result; of rows with equal `name` and `at`, only the last."""
        latest = {(row["name"], row["at"]): row for row in rows}
        lines = [f"{json.dumps(row, ensure_ascii=False)}\n" for row in latest.values()]
        (self.folder / _METRICS).write_text("".join(lines), "utf-8", "replace")

    # ── what the step asks for ──────────────────────────────────────────────────────────────────

    @property
    def readers(self) -> Sequence[Reader]:
        return self.plugins.build_every("reader")

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
        now = time.monotonic()
        with self._lock:
            is_event_due, is_file_due = now >= self._next_event_time, now >= self._next_file_time
            if is_event_due:
                self._next_event_time = now + _EVENT_SECONDS
            if is_file_due:
                self._next_file_time = now + _FILE_SECONDS
            if self._rate_start is None or done < self._rate_start[1]:  # a new phase
                self._rate_start = (time.time(), done)
        if is_file_due or not total:
            facts = {"done": done, "total": total, "unit": unit, "note": note}
            snapshot = {**facts, "time": time.time(), "since": self._rate_start}
            write_json(self.work / PROGRESS, snapshot, durable=False)
        if is_event_due or not total:
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


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a step that is running: its noun, its number from 1, and the text in front of notes."""

    noun: str
    number: int
    count: int
    label: str


class StepProgress:
    """Reports of a step's progress, in which work within a part counts as a share of it.

    `forward` is called like `Workspace.progress`. Within parts it gets the number of finished outermost
    parts, which never decreases: a share that is smaller than an earlier one is reported as the earlier one,
    because work within a part may be counted from 0 several times.
    """

    def __init__(self, forward: Callable[[float, float, str, str], None]) -> None:
        self._forward = forward
        self._parts: list[_Part] = []
        self._furthest = 0.0

    @contextmanager
    def part(self, noun: str, number: int, count: int, name: str = "") -> Iterator[None]:
        """Run the block as part `number`, from 1, of `count`; one without others or a name is no part."""
        if count == 1 and not name:
            yield
            return
        if number == 1 and not any(part.count > 1 for part in self._parts):
            self._furthest = 0.0
        label = f"{noun} {number} of {count}: {name}" if name and count > 1 else name
        self._parts.append(_Part(noun, number, count, label))
        try:
            self.report(0, 1)
            yield
            self.report(1, 1)
        finally:
            self._parts.pop()

    def report(self, done: float, total: float, unit: str = "", note: str = "") -> None:
        """Report progress within the running parts, or of the whole step if there are none."""
        note = " · ".join(filter(None, (*(part.label for part in self._parts), note)))
        parts = [part for part in self._parts if part.count > 1]
        if not parts:
            self._forward(done, total, unit, note)
            return
        share = min(max(done / total, 0.0), 1.0) if total else 0.0
        for part in reversed(parts[1:]):
            share = (part.number - 1 + share) / part.count
        outermost = parts[0]
        self._furthest = max(self._furthest, outermost.number - 1 + share)
        self._forward(self._furthest, outermost.count, make_plural(outermost.noun), note)


def list_plugins_behind(component: Any, plugins: Plugins) -> dict[str, str]:
    """Map the plugins of a component and its parts to their distribution and version.

    A bare file has no version; in place of it comes the SHA-256 of its content.
    """
    versions_by_plugin = {}
    for added in plugins.map_revisions(component):
        version = f"sha256:{added.source.content}" if added.source.content else added.source.version
        versions_by_plugin[added.source.name] = f"{added.source.distribution} {version}".strip()
    return dict(sorted(versions_by_plugin.items()))
