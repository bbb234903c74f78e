"""The events of a step that another process runs: lines of JSON, appended there and read here.

A file in the step's work folder needs nothing but a disk that both see, so every launcher has it.
"""

from __future__ import annotations

import json
import os
import socket
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emberge import errors
from emberge.errors import EmbergeError
from emberge.recipes.run.run_log import JsonLineFile


class LaunchedError(EmbergeError):
    """An error of a step in another process, of a class that this process does not know."""

    def __init__(self, message: str, exit_code: int = EmbergeError.exit_code) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class EventWriter:
    """The listener of a launched step: it writes each event for the process that launched it."""

    def __init__(self, path: Path) -> None:
        self._lines = JsonLineFile(path)

    def close(self) -> None:
        """Close the file."""
        self._lines.close()

    def started(self) -> None:
        """Write that the step is entered, with the process and its host."""
        self._write("started", pid=os.getpid(), host=socket.gethostname())

    def step_progressed(self, step: str, done: float, total: float, unit: str, note: str) -> None:
        """Write the step's progress."""
        self._write("progressed", done=done, total=total, unit=unit, note=note)

    def metric_logged(self, fingerprint: str, step: str, row: Mapping[str, Any]) -> None:
        """Write a logged number."""
        self._write("metric", row=dict(row))

    def step_warned(self, step: str, message: str) -> None:
        """Write a warning."""
        self._write("warned", message=message)

    def finished(self, seconds: float) -> None:
        """Write that the result was published."""
        self._write("finished", seconds=seconds)

    def failed(self, error: Exception) -> None:
        """Write the error that ended the step."""
        code = error.exit_code if isinstance(error, EmbergeError) else None
        trace = "" if code is not None else "".join(traceback.format_exception(error))
        kind = type(error).__name__
        self._write("failed", kind=kind, message=str(error), exit_code=code, traceback=trace)

    def _write(self, event: str, **details: Any) -> None:
        self._lines.append({"event": event, **details})


def new_lines(path: Path, since: int) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of a file's whole lines from byte `since` on, and the byte to continue from.

    The file is opened anew each time, which makes a network's file system look for what was added.
    """
    try:
        with path.open("rb") as file:
            file.seek(since)
            content = file.read()
    except FileNotFoundError:
        return [], since
    whole = content[: content.rfind(b"\n") + 1]
    return [json.loads(line) for line in whole.splitlines() if line], since + len(whole)


def error_of(event: Mapping[str, Any]) -> Exception:
    """Rebuild the error of a `failed` event, of its own class or, if not ours, of one named like it."""
    kind, message, code = event["kind"], event["message"], event["exit_code"]
    if code is None:
        # A class of the same name, so that it is shown like an error of this process.
        found: Exception = type(kind, (Exception,), {})(message)
        found.add_note(event["traceback"])
        return found
    known = getattr(errors, kind, None) if kind in errors.__all__ else None
    if isinstance(known, type) and issubclass(known, EmbergeError) and known.exit_code == code:
        return known(message)
    return LaunchedError(message, code)
