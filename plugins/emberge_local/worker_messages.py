"""Messages of the run's process and a step's process: the call of the step, its events, and its error."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import emberge
from emberge import EmbergeError
from emberge.contracts import MetricLogged, StepProgressed, StepWarned

# Names of the events at the beginning and the end of a step.
STARTED, FINISHED, FAILED = "started", "finished", "failed"
# Other events that a process writes.
EVENTS_BY_NAME: dict[str, Any] = {
    event.__name__: event for event in (StepProgressed, MetricLogged, StepWarned)
}


@dataclass(frozen=True, kw_only=True)
class StepCall:
    """Call of a step's process, as values of JSON; `machine` is added by whoever starts the process.

    Paths are absolute; `finished` are the fingerprints of finished steps by id, `events` the file for events.
    """

    out: str
    step: str
    fingerprint: str
    finished: Mapping[str, str]
    events: str
    text: str
    path: str | None
    overrides: Sequence[str]
    plugins: Sequence[str]
    blocked: Sequence[str]
    machine: Mapping[str, Any] = field(default_factory=dict)


class LaunchedError(EmbergeError):
    """An error of a step in another process whose class this process does not know."""

    def __init__(self, message: str, exit_code: int = EmbergeError.exit_code) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def build_failed_event(error: Exception) -> dict[str, Any]:
    """Return the error that ended a step as an event that `rebuild_error` reads."""
    code = error.exit_code if isinstance(error, EmbergeError) else None
    lines = [] if code is not None else traceback.format_exception(error)
    facts = {"kind": type(error).__name__, "message": str(error), "exit_code": code}
    return {"event": FAILED, **facts, "traceback": "".join(lines)}


def rebuild_error(event: Mapping[str, Any]) -> Exception:
    """Return the error of a `failed` event, of its class or, if that is unknown, of a class with its name."""
    kind, message, code = event["kind"], event["message"], event["exit_code"]
    if code is None:
        # A class of the same name, so that it is shown like an error of this process.
        unknown_error: Exception = type(kind, (Exception,), {})(message)
        unknown_error.add_note(event["traceback"])
        return unknown_error
    known_class = getattr(emberge, kind, EmbergeError)
    if issubclass(known_class, EmbergeError) and known_class.exit_code == code:
        known_error: Exception = known_class(message)
        return known_error
    return LaunchedError(message, code)
