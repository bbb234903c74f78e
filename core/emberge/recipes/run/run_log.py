"""What happens in a run, told to the plugins and written down in OUT."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from emberge.contracts.reference import Artifact
from emberge.errors import EmbergeError
from emberge.files.atomic import write_json
from emberge.plugins import Plugins
from emberge.recipes.folder.run_folder import OutFolder
from emberge.recipes.recipe import RecipeStep

__all__ = ["JsonLines", "RunLog", "StepListener"]


class JsonLines:
    """A file of one JSON object a line, appended to; a line that a kill cut in half is dropped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _drop_half_line(path)
        self._file = path.open("a", encoding="utf-8")

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a line; what is appended outlives the process."""
        self._file.write(json.dumps(row, ensure_ascii=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    @staticmethod
    def read(path: Path) -> list[dict[str, Any]]:
        """All whole lines of a file; none when it is missing."""
        if not path.exists():
            return []
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in lines if line]


class StepListener(Protocol):
    """Whoever is told what a step says while it runs."""

    def step_warned(self, step: str, message: str) -> None:
        """A step has something to say."""

    def step_progressed(self, step: str, done: float, total: float, unit: str, note: str) -> None:
        """A step got further."""

    def metric_logged(self, fingerprint: str, step: str, row: Mapping[str, Any]) -> None:
        """A number was logged; `row` has time, name, value and at."""


class RunLog:
    """Tells each event to the plugins and keeps `metrics.jsonl`, `run.log` and `.status.json`."""

    def __init__(self, place: OutFolder, plugins: Plugins, steps: Sequence[RecipeStep]) -> None:
        self.place = place
        self.plugins = plugins
        self._metrics = JsonLines(place.path / "metrics.jsonl")
        self._log = (place.path / "run.log").open("a", encoding="utf-8")
        self._states: dict[str, dict[str, Any]] = {
            s.id: {"id": s.id, "kind": s.kind, "state": "waiting"} for s in steps
        }

    def close(self) -> None:
        """Let go of the files."""
        for file in (self._metrics, self._log):
            with contextlib.suppress(OSError):  # lines that a full disk did not take
                file.close()

    def run_started(self, recipe: Path | None, quiet: bool) -> None:
        """A run begins."""
        steps = list(self._states)
        self._write(f"run started by process {os.getpid()} on {socket.gethostname()}: {steps}")
        self._save()
        self._tell("run_started", recipe=recipe, steps=steps, quiet=quiet)

    def step_started(self, step: RecipeStep, fingerprint: str) -> None:
        """A step begins or goes on."""
        work = self.place.work_of(step.id, fingerprint).name
        self._set(step.id, state="running", work=work, started=time.time())
        self._write(f"{step.id}: started ({step.kind})")
        self._tell("step_started", step=step.id, kind=step.kind)

    def step_skipped(self, step: str, folder: Path) -> None:
        """A step was finished already."""
        self._set(step, state="done", folder=folder.name)
        self._write(f"{step}: finished already, in {folder.name}")
        self._tell("step_skipped", step=step, folder=self.place.link(step))

    def step_finished(self, step: str, folder: Path, artifact: Artifact, seconds: float) -> None:
        """A step's result stands in its place."""
        self._set(step, state="done", folder=folder.name, seconds=round(seconds, 1))
        self._write(f"{step}: finished in {seconds:.1f} s, in {folder.name}")
        self._tell(
            "step_finished",
            step=step,
            folder=self.place.link(step),
            artifact=artifact,
            seconds=seconds,
        )

    def step_failed(self, step: str, error: BaseException) -> None:
        """A step ended with an error; one that was not foreseen leaves its traceback in the log."""
        message = str(error) if isinstance(error, EmbergeError) else repr(error)
        self._set(step, state="failed", error=message, **self._work_of(step))
        self._write(f"{step}: failed: {message}")
        if not isinstance(error, EmbergeError):
            self._write("".join(traceback.format_exception(error)))
        self._tell("step_failed", step=step, error=error)

    def step_blocked(self, step: str, by: Sequence[str]) -> None:
        """A step cannot run because one that it needs failed."""
        self._set(step, state="blocked", error=f"needs {', '.join(by)}")
        self._write(f"{step}: not run, needs {', '.join(by)}")

    def step_stopped(self, step: str) -> None:
        """The run was interrupted inside a step."""
        self._set(step, state="stopped", **self._work_of(step))
        self._write(f"{step}: stopped")

    def step_warned(self, step: str, message: str) -> None:
        """A step has something to say."""
        self._write(f"{step}: warning: {message}")
        self._tell("step_warned", step=step, message=message)

    def step_progressed(self, step: str, done: float, total: float, unit: str, note: str) -> None:
        """A step got further."""
        self._tell("step_progressed", step=step, done=done, total=total, unit=unit, note=note)

    def metric_logged(self, fingerprint: str, step: str, row: Mapping[str, Any]) -> None:
        """A number was logged; `row` has time, name, value and at."""
        named = {"time": row["time"], "step": step, "fingerprint": fingerprint[:8]}
        self._metrics.append({**named, **row})
        self._tell("metric_logged", step=step, name=row["name"], value=row["value"], at=row["at"])

    def run_finished(self, error: BaseException | None, details: Mapping[str, Any]) -> None:
        """A run ended."""
        how = "well" if error is None else f"with {type(error).__name__}: {error}"
        self._write(f"run ended {how}")
        self._tell("run_finished", error=error, details=details)

    def _tell(self, event: str, **details: Any) -> None:
        self.plugins.announce(event, out=self.place.path, **details)

    def _work_of(self, step: str) -> dict[str, Any]:
        state = self._states[step]
        return {"work": state["work"]} if "work" in state else {}

    def _set(self, step: str, **values: Any) -> None:
        old = self._states[step]
        self._states[step] = {"id": old["id"], "kind": old["kind"], **values}
        self._save()

    def _save(self) -> None:
        with _where_it_can():
            write_json(self.place.status, {"steps": list(self._states.values())}, durable=False)

    def _write(self, text: str) -> None:
        text = text.replace(str(self.place.path.absolute()), ".").rstrip()
        with _where_it_can():
            self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
            self._log.flush()


def _where_it_can() -> contextlib.AbstractContextManager[None]:
    """What is noted of a run neither ends it nor hides why it ends: the work says that the disk is full."""
    return contextlib.suppress(OSError)


def _drop_half_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("rb+") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)
