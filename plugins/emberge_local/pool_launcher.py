"""Steps in a launcher's pool of processes: each as soon as the steps that it needs are finished.

The call of a step is a line of JSON on its process's standard input. The process appends its events to a file
in the step's work folder. The process of the run reads those files, and it alone writes the run's log, status
and metrics.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import time
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from emberge import EmbergeError, Launcher, Machine, RecipeError
from emberge.contracts import StepFinished, StepWarned
from emberge.files import make_folder
from emberge.recipes import (
    JsonLineFile,
    RecipeRun,
    RecipeStep,
    compute_fingerprint,
    explain_disk_full,
    find_finished_artifact,
)

from emberge_local.worker_messages import (
    EVENTS_BY_NAME,
    FAILED,
    FINISHED,
    STARTED,
    LaunchedError,
    StepCall,
    rebuild_error,
)

TICK_SECONDS = 0.2
"""Seconds between two checks of running steps: progress is announced five times a second."""
LEAVING_SECONDS = 10.0
"""Seconds that processes may take to end when the run is stopped, in addition to their launcher's time."""
# If fewer bytes than this are free, the full disk may have kept a process from writing its error.
_NOTHING_FREE_BYTES = 2**20
# Exit codes of a process that was asked to end (SIGINT, SIGTERM); it counts as lost, like a killed one.
_ASKED_TO_END_CODES = (130, 143)
# Number of times that a step resumes from its last state after its process or machine was lost.
_MOST_RETRIES = 2


@dataclass(frozen=True, slots=True)
class StepRequest:
    """One attempt at a step, by a process with access to the same folders.

    `StepProcess(request, machine, threads)` starts the process. `work` is the step's folder inside OUT, where
    the process writes its events; `log` receives what it prints. It starts in `current_folder` and receives
    the `call`, plain values that a launcher need not understand.
    """

    work: Path
    log: Path
    current_folder: Path
    call: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """The end of a process: its exit code, negative for a signal, and the last lines that it printed."""

    code: int
    last_lines: str = ""


class StepHandle(Protocol):
    """A step submitted to a pool: waiting, running or ended."""

    def poll(self) -> ProcessEnd | None:
        """Return how the process ended; None until it has. It is called several times a second."""

    def stop(self) -> None:
        """Ask the process to end; `poll` returns None until it has."""


class StepPool(Protocol):
    """The processes of a launcher while a recipe runs."""

    @property
    def has_room(self) -> bool:
        """True if the pool can take another step now; a pool with its own queue always can."""

    def launch(self, request: StepRequest) -> StepHandle:
        """Start a step, or queue it.

        Raises:
            EmbergeError: if the step can be neither started nor queued.
        """


@dataclass
class _Attempt:
    """A step that is ready to run, or that the launcher is running."""

    step: RecipeStep
    fingerprint: str
    losses: int = 0
    """The number of times that the step's process was lost before."""
    bytes_read: int = 0
    """The number of bytes that were read of the file of events."""
    is_started: bool = False
    outcome: Mapping[str, Any] | None = None


class _Running(NamedTuple):
    """An attempt that the pool has taken, its file of events, and the handle of its process."""

    attempt: _Attempt
    events: Path
    handle: StepHandle


@dataclass(frozen=True, kw_only=True)
class PoolLauncher(Launcher):
    """A launcher that runs steps by a pool of processes."""

    def open(self, machine: Machine) -> AbstractContextManager[StepPool]:
        """Open a pool for one run of a recipe; closing it ends all its processes.

        `machine` is what the run may use of this machine.

        Raises:
            EmbergeError: if the pool cannot be opened.
        """
        raise NotImplementedError

    def run_steps(self, run: RecipeRun) -> None:
        """Run every step that can run, each as soon as the steps that it needs are finished.

        Raises:
            RecipeError: if the recipe has no text, which other processes could read.
            EmbergeError: if the launcher cannot start.
        """
        if not run.recipe.text:
            raise RecipeError(
                "a recipe that was made in Python and has no text cannot be read again by other processes; "
                "write it as YAML, or run it without a launcher"
            )
        with self.open(run.context.machine) as pool:
            _PoolRun(run, pool).run_all()


class _PoolRun:
    """The steps of one run in a pool: waiting, ready to start, or running."""

    def __init__(self, run: RecipeRun, pool: StepPool) -> None:
        self._run, self._pool = run, pool
        self._waiting = list(run.recipe.steps)
        self._ready: list[_Attempt] = []
        self._running: list[_Running] = []

    def run_all(self) -> None:
        """Run every step that can run."""
        try:
            while self._waiting or self._ready or self._running:
                self._find_ready()
                self._start_ready()
                self._follow_running()
                if self._running:
                    time.sleep(TICK_SECONDS)
        except BaseException:
            self._stop_running()
            raise

    def _find_ready(self) -> None:
        """Find the steps that can start, and record those that are finished or failed."""
        run, waiting = self._run, self._waiting
        self._waiting = []
        for step in waiting:
            if run.note_if_blocked(step):
                continue
            if any(name not in run.finished for name in step.needs):
                self._waiting.append(step)
                continue
            try:
                fingerprint = compute_fingerprint(step, run.recipe.seed, run.context.targets)
                if not run.reuse_result(step, fingerprint):
                    self._ready.append(_Attempt(step, fingerprint))
            except Exception as error:  # of any class, as a step is a plugin's code
                run.fail(step, error)
        run.hashes.save()

    def _start_ready(self) -> None:
        run, pool = self._run, self._pool
        while self._ready and pool.has_room:
            attempt = self._ready.pop(0)
            try:
                request, events = _build_request(run, attempt.step, attempt.fingerprint)
                self._running.append(_Running(attempt, events, pool.launch(request)))
            except (EmbergeError, OSError) as error:
                run.fail(attempt.step, error)

    def _follow_running(self) -> None:
        for running in list(self._running):
            attempt = running.attempt
            process_end = running.handle.poll()  # before the events are read
            _record_events(self._run, attempt, running.events)
            if process_end is not None:
                self._running.remove(running)
                self._finish(attempt, process_end)

    def _finish(self, attempt: _Attempt, process_end: ProcessEnd) -> None:
        """Record the result or the error of a process that ended, or run its step again."""
        run, step, outcome = self._run, attempt.step, attempt.outcome
        if outcome is not None and outcome["event"] == FAILED:
            run.fail(step, rebuild_error(outcome))
            return
        try:
            artifact = find_finished_artifact(run.out_folder, step.id, attempt.fingerprint)
            if artifact is not None:  # the process may have been killed after it published
                seconds = float(outcome["seconds"]) if outcome is not None else 0.0
                out, link = run.out_folder.path, run.out_folder.locate_link(step.id)
                event = StepFinished(out, step.id, link, artifact, seconds)
                run.finish(step, attempt.fingerprint, event)
                return
        except EmbergeError as error:
            run.fail(step, error)
            return
        self._retry_or_fail(attempt, process_end)

    def _retry_or_fail(self, attempt: _Attempt, process_end: ProcessEnd) -> None:
        """Run a step again in another process if it was killed and may be retried; else record its error."""
        run, step = self._run, attempt.step
        code, losses = process_end.code, attempt.losses + 1
        loss = _describe_loss(process_end)
        if code >= 0 and code not in _ASKED_TO_END_CODES:
            run.fail(step, _build_unexplained_error(run, process_end))
        elif attempt.losses < _MOST_RETRIES:
            self._ready.insert(0, _Attempt(step, attempt.fingerprint, losses))
            message = f"{loss}; it goes on from its last state ({losses} of {_MOST_RETRIES})"
            run.log.record(StepWarned(run.out_folder.path, step.id, message))
        else:
            times = f" {losses} times" if attempt.losses else ""
            run.fail(step, EmbergeError(f"{loss}{times}; the same command goes on from there"))

    def _stop_running(self) -> None:
        """End every process and wait up to `LEAVING_SECONDS` seconds for all of them."""
        for running in self._running:
            running.handle.stop()
            if running.attempt.is_started:
                self._run.log.note_stopped(running.attempt.step.id)
        end = time.monotonic() + LEAVING_SECONDS
        while self._running and time.monotonic() < end:
            self._running = [one for one in self._running if one.handle.poll() is None]
            time.sleep(TICK_SECONDS)


def _build_request(run: RecipeRun, step: RecipeStep, fingerprint: str) -> tuple[StepRequest, Path]:
    """Create the step's work folder; return the request and the file in which the events will be."""
    recipe, plugins = run.recipe, run.context.targets.plugins
    work = run.out_folder.locate_work(step.id, fingerprint).absolute()
    events = work / f".worker-{uuid.uuid4().hex[:12]}.jsonl"
    with explain_disk_full(run.out_folder):
        make_folder(work)  # otherwise the folder's name, and so its states, could be lost
        events.touch()
    call = StepCall(
        out=str(run.out_folder.path.absolute()),
        step=step.id,
        fingerprint=fingerprint,
        finished=run.fingerprints,
        events=str(events),
        text=recipe.text,
        path=str(recipe.path) if recipe.path else None,
        overrides=recipe.overrides,
        plugins=[os.path.abspath(file) for file in plugins.files],
        blocked=plugins.blocked,
    )
    log = events.with_suffix(".log")
    return StepRequest(work, log, Path.cwd(), dataclasses.asdict(call)), events


def _record_events(run: RecipeRun, attempt: _Attempt, events: Path) -> None:
    """Record the new events of an attempt's process; events of other names are those of another version."""
    lines, attempt.bytes_read = JsonLineFile.read(events, attempt.bytes_read)
    for line in lines:
        name = line.pop("event")
        if name == STARTED:
            attempt.is_started = True
            if attempt.losses == 0:
                run.start(attempt.step, attempt.fingerprint)
        elif name in (FINISHED, FAILED):
            attempt.outcome = {"event": name, **line}
        elif name in EVENTS_BY_NAME:
            run.log.record(EVENTS_BY_NAME[name](run.out_folder.path, **line))


def _describe_loss(process_end: ProcessEnd) -> str:
    """Return how a process was lost that left neither a result nor an error."""
    if process_end.code < 0:
        return f"its process was killed by signal {-process_end.code}"
    return "its process was asked to end"


def _build_unexplained_error(run: RecipeRun, process_end: ProcessEnd) -> EmbergeError:
    """Return the error of a process that ended by itself without an event that explains the end."""
    lines = [line.removeprefix("error: ") for line in process_end.last_lines.splitlines()]
    message = (
        "; ".join(lines) or f"its process ended with exit code {process_end.code} and no result"
    )
    if shutil.disk_usage(run.out_folder.path).free < _NOTHING_FREE_BYTES:
        message = run.out_folder.describe_full_disk()
    return LaunchedError(message, process_end.code or EmbergeError.exit_code)
