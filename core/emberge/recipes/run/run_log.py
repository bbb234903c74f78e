"""The log of a run: `run.log`, `metrics.jsonl` and `.status.json` in OUT, and its events to the plugins."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from emberge.contracts import (
    Event,
    MetricLogged,
    RunFinished,
    RunStarted,
    StepEvent,
    StepFailed,
    StepFinished,
    StepSkipped,
    StepStarted,
    StepWarned,
)
from emberge.errors import EmbergeError
from emberge.files import write_json
from emberge.plugins import Plugins
from emberge.recipes.recipe import RecipeStep
from emberge.results import OutFolder
from emberge.wording import make_printable_lines


class JsonLineFile:
    """A file of JSON objects, one per line; lines that a kill or a power cut broke are dropped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab+")
        self._file.seek(0)
        content = self._file.read()
        zeros_start = content.find(b"\0")  # left by a power cut
        sound_length = content.rfind(b"\n", 0, zeros_start if zeros_start >= 0 else None) + 1
        if sound_length != len(content):
            # Without the sync, old lines could reappear between new ones after a power cut.
            self._file.truncate(sound_length)
            os.fsync(self._file.fileno())

    def append(self, row: Mapping[str, Any]) -> None:
        """Append a row as one line, which is kept even if the process is killed."""
        self._file.write(json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @staticmethod
    def read(path: Path, since: int = 0) -> tuple[list[dict[str, Any]], int]:
        """Return the rows of a file's complete lines from byte `since` on, and the byte to continue from.

        A missing file has no rows. The file is opened at each call, so that a network file system checks for
        new content.
        """
        try:
            with path.open("rb") as file:
                file.seek(since)
                content = file.read()
        except FileNotFoundError:
            return [], since
        lines = content[: content.rfind(b"\n") + 1]
        return [json.loads(line) for line in lines.splitlines() if line], since + len(lines)


class RunLog:
    """The log of a run, which writes each event to its files in OUT and announces it to the plugins."""

    def __init__(
        self, out_folder: OutFolder, plugins: Plugins, steps: Sequence[RecipeStep]
    ) -> None:
        self._out_folder, self._plugins = out_folder, plugins
        self._metrics = JsonLineFile(out_folder.path / "metrics.jsonl")
        with contextlib.ExitStack() as opened:
            opened.callback(self._metrics.close)
            self._log = (out_folder.path / "run.log").open("ab")
            opened.pop_all()
        self._fingerprints: dict[str, str] = {}
        self._states: dict[str, dict[str, Any]] = {
            s.id: {"id": s.id, "kind": s.kind, "state": "waiting"} for s in steps
        }

    def close(self) -> None:
        """Close the files."""
        for file in (self._metrics, self._log):
            with contextlib.suppress(OSError):  # a full disk may have refused lines
                file.close()

    def record(self, event: Event) -> None:
        """Write an event to the files that keep events of its type, and announce it to the plugins."""
        match event:
            case RunStarted():
                process_label = f"process {os.getpid()} on {socket.gethostname()}"
                self._write(f"run started by {process_label}: {[*event.steps]}")
                self._save_states()
            case RunFinished(error=None):
                self._write("run ended well")
            case RunFinished():
                self._write(f"run ended with {type(event.error).__name__}: {event.error}")
            case StepEvent():
                self._write_step_event(event)
        self._plugins.announce(event)

    def note_blocked(self, step: str, failed_steps: Sequence[str]) -> None:
        """Note that a step cannot run because a step that it needs failed."""
        self._set_state(step, "blocked", error=f"needs {', '.join(failed_steps)}")
        self._write(f"{step}: not run, needs {', '.join(failed_steps)}")

    def note_stopped(self, step: str) -> None:
        """Note that the run was interrupted during a step."""
        self._set_state(step, "stopped", **self._get_work(step))
        self._write(f"{step}: stopped")

    def _write_step_event(self, event: StepEvent) -> None:
        step = event.step
        match event:
            case StepStarted():
                self._fingerprints[step] = event.fingerprint
                work = self._out_folder.locate_work(step, event.fingerprint).name
                self._set_state(step, "running", work=work, started=time.time())
                self._write(f"{step}: {event.beginning} ({event.kind})")
            case MetricLogged():
                fingerprint = self._fingerprints.get(step, "")[:8]
                row = {"time": round(time.time(), 3), "step": step, "fingerprint": fingerprint}
                self._metrics.append(
                    {**row, "name": event.name, "value": event.value, "at": event.at}
                )
            case StepWarned():
                self._write(f"{step}: warning: {event.message}")
            case StepSkipped():
                folder = event.folder.resolve().name
                self._set_state(step, "done", folder=folder)
                self._write(f"{step}: finished already, in {folder}")
            case StepFinished():
                folder = event.folder.resolve().name
                self._set_state(step, "done", folder=folder, seconds=round(event.seconds, 1))
                self._write(f"{step}: finished in {event.seconds:.1f} s, in {folder}")
            case StepFailed():
                self._write_failure(step, event.error)

    def _write_failure(self, step: str, error: BaseException) -> None:
        is_explained = isinstance(error, EmbergeError)
        message = str(error) if is_explained else repr(error)
        self._set_state(step, "failed", error=message, **self._get_work(step))
        self._write(f"{step}: failed: {message}")
        if not is_explained:
            self._write("".join(traceback.format_exception(error)))

    def _get_work(self, step: str) -> dict[str, Any]:
        state = self._states[step]
        return {"work": state["work"]} if "work" in state else {}

    def _set_state(self, step: str, state: str, **facts: Any) -> None:
        kind = self._states[step]["kind"]
        self._states[step] = {"id": step, "kind": kind, "state": state, **facts}
        self._save_states()

    def _save_states(self) -> None:
        with contextlib.suppress(OSError):  # a failing log neither ends a run nor hides its error
            states = {"steps": list(self._states.values())}
            write_json(self._out_folder.status, states, durable=False)

    def _write(self, text: str) -> None:
        text = text.replace(str(self._out_folder.path.absolute()), ".").rstrip()
        # Further lines of a message are indented, so that they cannot be mistaken for lines of the log.
        text = make_printable_lines(text).replace("\n", "\n  ")
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n"
        with contextlib.suppress(OSError):
            self._log.write(line.encode("utf-8", "backslashreplace"))
            self._log.flush()
