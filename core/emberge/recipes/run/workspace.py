"""What a running step is given: folders, models, and somebody to tell."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge.contracts.dataset import Reader
from emberge.contracts.reference import Artifact, DataRef, FileRef, Model, ModelRef, Reference
from emberge.contracts.step import Machine, Rehearsal
from emberge.files.atomic import write_json
from emberge.merging.planning.merge_header import versions
from emberge.plugins import Plugins
from emberge.recipes.folder.provenance import plugins_behind
from emberge.recipes.folder.results import Results
from emberge.recipes.folder.run_folder import OutFolder
from emberge.recipes.recipe import RecipeStep
from emberge.recipes.run.run_log import JsonLines, StepListener

__all__ = ["METRICS", "PROGRESS", "StepWorkspace", "installed_readers"]

METRICS = "metrics.jsonl"
PROGRESS = "progress.json"
_WARNINGS = "warnings.jsonl"
_EVENT_EVERY = 0.2  # seconds between two progress events
_FILE_EVERY = 1.0  # seconds between two writes of progress.json


def installed_readers(plugins: Plugins) -> tuple[Reader, ...]:
    """One reader of each kind that the plugins add."""
    return tuple(c.type() for c in plugins.components if c.kind == "reader")


@dataclass(frozen=True)
class RunContext:
    """What all steps of a run have in common."""

    place: OutFolder
    results: Results
    record: StepListener
    machine: Machine
    seed: int
    rehearsal: Rehearsal | None = None
    readers: tuple[Reader, ...] = ()
    recipe: str = ""
    """Hash of the recipe as it is kept in OUT, if it has a text."""


@dataclass
class _Clock:
    """When something was last done, so that it is not done too often."""

    every: float
    last: float = -1e9

    def due(self) -> bool:
        now = time.monotonic()
        if now - self.last < self.every:
            return False
        self.last = now
        return True


@dataclass
class StepWorkspace:
    """Where one step runs and whom it tells."""

    step: RecipeStep
    fingerprint: str
    around: RunContext
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._metrics = JsonLines(self.work / f".{METRICS}")
        self._kept_warnings = JsonLines(self.work / f".{_WARNINGS}")
        self.warnings += [row["message"] for row in JsonLines.read(self._kept_warnings.path)]
        self._event, self._file = _Clock(_EVENT_EVERY), _Clock(_FILE_EVERY)
        self._told: set[str] = set()
        self._since: tuple[float, float] | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        """Let go of the files."""
        self._metrics.close()
        self._kept_warnings.close()

    @property
    def id(self) -> str:
        return self.step.id

    @property
    def work(self) -> Path:
        return self.around.place.work_of(self.step.id, self.fingerprint)

    @property
    def folder(self) -> Path:
        return self.work / "output"

    @property
    def store(self) -> Path:
        return self.around.place.store

    @property
    def seed(self) -> int:
        return self.around.seed

    @property
    def machine(self) -> Machine:
        return self.around.machine

    @property
    def rehearsal(self) -> Rehearsal | None:
        return self.around.rehearsal

    @property
    def readers(self) -> Sequence[Reader]:
        return self.around.readers

    @property
    def provenance(self) -> Mapping[str, Any]:
        """What the result was made of and with; the fingerprint stands for options, seed and inputs."""
        return {
            "step": self.id,
            "kind": self.step.kind,
            "fingerprint": self.fingerprint,
            **({"recipe": self.around.recipe} if self.around.recipe else {}),
            "seed": self.seed,
            "versions": versions(),
            "plugins": plugins_behind(self.step.step, self.around.results.plugins),
        }

    def model(self, reference: ModelRef) -> Model:
        return self.around.results.model(reference)

    def models(self, reference: ModelRef) -> Sequence[Model]:
        return self.around.results.models(reference)

    def data(self, reference: DataRef | FileRef) -> Path:
        return self.around.results.data(reference)

    def artifact(self, reference: Reference) -> tuple[Path, Artifact]:
        result = self.around.results.step(reference)
        return result.folder, result.artifact

    def progress(self, done: float, total: float, unit: str = "", note: str = "") -> None:
        with self._lock:
            event, file = self._event.due(), self._file.due()
            if self._since is None or done < self._since[1]:  # a new phase starts to count again
                self._since = (time.time(), done)
        if file:
            now = {"done": done, "total": total, "unit": unit, "note": note, "time": time.time()}
            write_json(self.work / PROGRESS, {**now, "since": self._since}, durable=False)
        if event:
            self.around.record.step_progressed(self.id, done, total, unit, note)

    def metric(self, name: str, value: float, at: int | None = None) -> None:
        row = {"time": round(time.time(), 3), "name": name, "value": float(value), "at": at}
        with self._lock:
            self._metrics.append(row)
            self.around.record.metric_logged(self.fingerprint, self.id, row)

    def warn(self, message: str) -> None:
        with self._lock:
            if message in self._told:
                return
            self._told.add(message)
            if message not in self.warnings:  # else it was said before a kill, and is kept
                self.warnings.append(message)
                self._kept_warnings.append({"message": message})
        self.around.record.step_warned(self.id, message)

    def write_metrics(self) -> None:
        """Put the step's numbers beside its result; of what a resumed step logged twice, the last."""
        rows = JsonLines.read(self._metrics.path)
        if not rows:
            return
        latest = {(row["name"], row["at"]): row for row in rows}
        (self.folder / METRICS).unlink(missing_ok=True)
        lines = JsonLines(self.folder / METRICS)
        for row in latest.values():
            lines.append(row)
        lines.close()
