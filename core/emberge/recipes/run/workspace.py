"""The context of a running step: folders, models, settings, and a listener for its events."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge.contracts import (
    Artifact,
    DataRef,
    FileRef,
    Machine,
    Model,
    ModelRef,
    Reader,
    Reference,
)
from emberge.files import write_json
from emberge.plugins import Plugins
from emberge.recipes.recipe import RecipeStep
from emberge.recipes.references import Targets
from emberge.recipes.run.run_log import JsonLineFile, StepListener
from emberge.recipes.run.step_progress import StepProgress
from emberge.results import OutFolder
from emberge.tensor_files import versions

METRICS = "metrics.jsonl"
PROGRESS = "progress.json"
_WARNINGS = "warnings.jsonl"
_EVENT_EVERY = 0.2  # seconds between two progress events
_FILE_EVERY = 1.0  # seconds between two writes of progress.json


def build_installed_readers(plugins: Plugins) -> tuple[Reader, ...]:
    """Build one reader of each kind that the plugins add."""
    return tuple(c.type() for c in plugins.components if c.kind == "reader")


@dataclass(frozen=True)
class RunContext:
    """Folders, results and settings that all steps of a run share."""

    place: OutFolder
    targets: Targets
    listener: StepListener
    machine: Machine
    seed: int
    recipe: str = ""
    """The hash of the recipe as it is kept in OUT, if it has a text."""


@dataclass
class _Timer:
    """A timer that lets at least `every` seconds pass between two events of a kind."""

    every: float
    last: float = -1e9

    def due(self) -> bool:
        """Return whether enough time has passed since the last event; if so, count from now on."""
        now = time.monotonic()
        if now - self.last < self.every:
            return False
        self.last = now
        return True


@dataclass
class StepWorkspace:
    """The folders, models and settings of one running step, which reports progress and warnings here."""

    step: RecipeStep
    fingerprint: str
    context: RunContext
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._metrics = JsonLineFile(self.work / f".{METRICS}")
        self._kept_warnings = JsonLineFile(self.work / f".{_WARNINGS}")
        self.warnings += [row["message"] for row in JsonLineFile.read(self._kept_warnings.path)]
        self._event, self._file = _Timer(_EVENT_EVERY), _Timer(_FILE_EVERY)
        self._warned: set[str] = set()
        self._since: tuple[float, float] | None = None
        self._lock = threading.Lock()
        self._progress = StepProgress(self._forward_progress)

    def close(self) -> None:
        """Close the files."""
        self._metrics.close()
        self._kept_warnings.close()

    @property
    def id(self) -> str:
        return self.step.id

    @property
    def work(self) -> Path:
        return self.context.place.work_of(self.step.id, self.fingerprint)

    @property
    def folder(self) -> Path:
        return self.work / "output"

    @property
    def store(self) -> Path:
        return self.context.place.store

    @property
    def seed(self) -> int:
        step_seed = getattr(self.step.step, "seed", None)
        return self.context.seed if step_seed is None else step_seed

    @property
    def machine(self) -> Machine:
        return self.context.machine

    @property
    def readers(self) -> Sequence[Reader]:
        return build_installed_readers(self.context.targets.plugins)

    @property
    def plugins(self) -> Plugins:
        return self.context.targets.plugins

    @property
    def provenance(self) -> Mapping[str, Any]:
        """The result's provenance: step, fingerprint of options, seed and inputs, versions, plugins."""
        return {
            "step": self.id,
            "kind": self.step.kind,
            "fingerprint": self.fingerprint,
            **({"recipe": self.context.recipe} if self.context.recipe else {}),
            "seed": self.context.seed,
            "versions": versions(),
            "plugins": list_plugins_behind(self.step.step, self.context.targets.plugins),
        }

    def model(self, reference: ModelRef) -> Model:
        return self.context.targets.model(reference)

    def models(self, reference: ModelRef) -> Sequence[Model]:
        return self.context.targets.models(reference)

    def whole_model(self, model: Model) -> AbstractContextManager[Path]:
        from emberge.merging import whole_model  # a plain merge does not need this import

        return whole_model(model, self.work, self.machine)

    def data(self, reference: DataRef | FileRef) -> Path:
        return self.context.targets.data(reference)

    def artifact(self, reference: Reference) -> tuple[Path, Artifact]:
        result = self.context.targets.step(reference)
        return result.folder, result.artifact

    def progress(self, done: float, total: float, unit: str = "", note: str = "") -> None:
        self._progress.report(done, total, unit, note)

    def part(
        self, noun: str, number: int, count: int, name: str = ""
    ) -> AbstractContextManager[None]:
        return self._progress.part(noun, number, count, name)

    def _forward_progress(self, done: float, total: float, unit: str, note: str) -> None:
        with self._lock:
            event, file = self._event.due() or not total, self._file.due() or not total
            if self._since is None or done < self._since[1]:  # a new phase: the rate starts again
                self._since = (time.time(), done)
        if file:
            snapshot = {
                "done": done,
                "total": total,
                "unit": unit,
                "note": note,
                "time": time.time(),
            }
            write_json(self.work / PROGRESS, {**snapshot, "since": self._since}, durable=False)
        if event:
            self.context.listener(
                "progressed", self.id, done=done, total=total, unit=unit, note=note
            )

    def metric(self, name: str, value: float, at: int | None = None) -> None:
        row = {"time": round(time.time(), 3), "name": name, "value": float(value), "at": at}
        with self._lock:
            self._metrics.append(row)
            self.context.listener("metric", self.id, row=row, fingerprint=self.fingerprint)

    def warn(self, message: str) -> None:
        with self._lock:
            if message in self._warned:
                return
            self._warned.add(message)
            if message not in self.warnings:  # otherwise it was shown before a kill, and is kept
                self.warnings.append(message)
                self._kept_warnings.append({"message": message})
        self.context.listener("warned", self.id, message=message)

    def write_metrics(self) -> None:
        """Write the step's metrics next to its result; of rows with equal `name` and `at`, only the last."""
        rows = JsonLineFile.read(self._metrics.path)
        if not rows:
            return
        latest = {(row["name"], row["at"]): row for row in rows}
        (self.folder / METRICS).unlink(missing_ok=True)
        lines = JsonLineFile(self.folder / METRICS)
        for row in latest.values():
            lines.append(row)
        lines.close()


def list_plugins_behind(component: Any, plugins: Plugins) -> dict[str, str]:
    """Map the plugins of a component and its parts to their distribution and version.

    A bare file has no version; in place of it comes the SHA-256 of its content.
    """
    versions = {}
    for added in plugins.components_behind(component):
        version = f"sha256:{added.content}" if added.content else added.version
        versions[added.plugin] = f"{added.distribution} {version}".strip()
    return dict(sorted(versions.items()))
