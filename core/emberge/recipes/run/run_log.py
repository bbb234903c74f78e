"""The events of a run, announced to the plugins and written to files in OUT."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from emberge.contracts import Artifact
from emberge.errors import EmbergeError
from emberge.files import write_json
from emberge.plugins import Plugins
from emberge.recipes.recipe import RecipeStep
from emberge.results import OutFolder
from emberge.wording import printable_lines


class JsonLineFile:
    """A file of JSON objects, one per line; lines that a kill or a power cut broke are dropped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _drop_broken_lines(path)
        self._file = path.open("ab")

    def append(self, row: Mapping[str, Any]) -> None:
        """Append a row as one line, which is kept even if the process is killed."""
        self._file.write(json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @staticmethod
    def read(path: Path) -> list[dict[str, Any]]:
        """Return the rows of all complete lines of a file; an empty list if the file is missing."""
        if not path.exists():
            return []
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        return [json.loads(line) for line in lines if line]


StepListener = Callable[..., None]
"""The receiver of a running step's events: `listener("warned", step_id, message=…)`, as `RunLog.record`."""


class RunLog:
    """The record of a run: it announces events and writes `metrics.jsonl`, `run.log` and `.status.json`."""

    def __init__(self, place: OutFolder, plugins: Plugins, steps: Sequence[RecipeStep]) -> None:
        self.place = place
        self.plugins = plugins
        self._metrics = JsonLineFile(place.path / "metrics.jsonl")
        with contextlib.ExitStack() as opened:
            opened.callback(self._metrics.close)
            self._log = (place.path / "run.log").open("ab")
            opened.pop_all()
        self._states: dict[str, dict[str, Any]] = {
            s.id: {"id": s.id, "kind": s.kind, "state": "waiting"} for s in steps
        }

    def close(self) -> None:
        """Close the files."""
        for file in (self._metrics, self._log):
            with contextlib.suppress(OSError):  # a full disk may have refused lines
                file.close()

    def run_started(self, recipe: Path | None, quiet: bool) -> None:
        """Record that a run begins."""
        steps = list(self._states)
        self._write(f"run started by process {os.getpid()} on {socket.gethostname()}: {steps}")
        self._save_states()
        self._announce_event("run_started", recipe=recipe, steps=steps, quiet=quiet)

    def step_started(self, step: RecipeStep, fingerprint: str) -> None:
        """Record that a step begins or continues."""
        work = self.place.work_of(step.id, fingerprint).name
        self._set_state(step.id, state="running", work=work, started=time.time())
        self._write(f"{step.id}: started ({step.kind})")
        self._announce_event("step_started", step=step.id, kind=step.kind)

    def step_skipped(self, step: str, folder: Path) -> None:
        """Record that a step was finished by an earlier run."""
        self._set_state(step, state="done", folder=folder.name)
        self._write(f"{step}: finished already, in {folder.name}")
        self._announce_event("step_skipped", step=step, folder=self.place.link(step))

    def step_finished(self, step: str, folder: Path, artifact: Artifact, seconds: float) -> None:
        """Record that a step's result was published."""
        self._set_state(step, state="done", folder=folder.name, seconds=round(seconds, 1))
        self._write(f"{step}: finished in {seconds:.1f} s, in {folder.name}")
        self._announce_event(
            "step_finished",
            step=step,
            folder=self.place.link(step),
            artifact=artifact,
            seconds=seconds,
        )

    def step_failed(self, step: str, error: BaseException) -> None:
        """Record that a step failed; unless the error is an EmbergeError, the log has its traceback."""
        message = str(error) if isinstance(error, EmbergeError) else repr(error)
        self._set_state(step, state="failed", error=message, **self._work_of(step))
        self._write(f"{step}: failed: {message}")
        if not isinstance(error, EmbergeError):
            self._write("".join(traceback.format_exception(error)))
        self._announce_event("step_failed", step=step, error=error)

    def step_blocked(self, step: str, by: Sequence[str]) -> None:
        """Record that a step cannot run because a step that it needs failed."""
        self._set_state(step, state="blocked", error=f"needs {', '.join(by)}")
        self._write(f"{step}: not run, needs {', '.join(by)}")

    def step_stopped(self, step: str) -> None:
        """Record that the run was interrupted during a step."""
        self._set_state(step, state="stopped", **self._work_of(step))
        self._write(f"{step}: stopped")

    def record(self, event: str, step: str, **details: Any) -> None:
        """Record an event of a running step.

        A step is `warned` (message), has `progressed` (done, total, unit, note), or has logged a `metric`: a
        row with `time`, `name`, `value` and `at`, and the fingerprint.
        """
        if event == "metric":
            row, fingerprint = details["row"], details["fingerprint"]
            self._metrics.append(
                {"time": row["time"], "step": step, "fingerprint": fingerprint[:8], **row}
            )
            event, details = "metric_logged", {key: row[key] for key in ("name", "value", "at")}
        elif event == "warned":
            self._write(f"{step}: warning: {details['message']}")
            event = "step_warned"
        else:
            event = "step_progressed"
        self._announce_event(event, step=step, **details)

    def run_finished(self, error: BaseException | None, details: Mapping[str, Any]) -> None:
        """Record that a run ended, well or with an error."""
        outcome_text = "well" if error is None else f"with {type(error).__name__}: {error}"
        self._write(f"run ended {outcome_text}")
        self._announce_event("run_finished", error=error, details=details)

    def _announce_event(self, event: str, **details: Any) -> None:
        self.plugins.announce(event, out=self.place.path, **details)

    def _work_of(self, step: str) -> dict[str, Any]:
        state = self._states[step]
        return {"work": state["work"]} if "work" in state else {}

    def _set_state(self, step: str, **values: Any) -> None:
        old_state = self._states[step]
        self._states[step] = {"id": old_state["id"], "kind": old_state["kind"], **values}
        self._save_states()

    def _save_states(self) -> None:
        with _ignore_disk_errors():
            write_json(self.place.status, {"steps": list(self._states.values())}, durable=False)

    def _write(self, text: str) -> None:
        text = text.replace(str(self.place.path.absolute()), ".").rstrip()
        # Further lines of a message are indented, so that they cannot be mistaken for lines of the
        # log.
        text = printable_lines(text).replace("\n", "\n  ")
        with _ignore_disk_errors():
            line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n"
            self._log.write(line.encode("utf-8", "backslashreplace"))
            self._log.flush()


def _ignore_disk_errors() -> contextlib.AbstractContextManager[None]:
    """Return a context that drops OSErrors, so that a failing log neither ends a run nor hides its error."""
    return contextlib.suppress(OSError)


def _drop_broken_lines(path: Path) -> None:
    """Truncate a file before a line without a line end, or before zeros that a power cut left."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        content = file.read()
        zeros_start = content.find(b"\0")
        sound_length = content.rfind(b"\n", 0, zeros_start if zeros_start >= 0 else None) + 1
        if sound_length != len(content):
            file.truncate(sound_length)
            os.fsync(file.fileno())  # otherwise the old lines could reappear between new lines
