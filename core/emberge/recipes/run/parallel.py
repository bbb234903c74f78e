"""Steps in parallel: a launcher runs steps whose inputs are finished, and this process records their events.

The steps run in processes that can access OUT; each appends its events to a file in its work folder. Only
this process reads those files, announces the events to the plugins, and writes the run's log, status and
metrics.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge.contracts import Ended, Launch, Launched, Launcher, StepPool
from emberge.errors import EmbergeError, RecipeError
from emberge.files import make_folder
from emberge.recipes.recipe import RecipeStep
from emberge.recipes.run.run_state import RunState
from emberge.recipes.run.run_step import explain_disk_full, result_of
from emberge.recipes.run.step_call import LaunchedError, StepCall, read_new_lines, rebuild_error

TICK = 0.2  # seconds between two checks of running steps: progress is announced five times a second
# Seconds that a shared disk may take to show the result that a process on another machine wrote.
PATIENCE = 10.0
# Seconds that processes may take to end when the run is stopped, in addition to their launcher's
# time.
LEAVING = 10.0
# If fewer bytes than this are free, the full disk may have kept a process from writing its error.
_NOTHING_FREE = 2**20
# Exit codes of a process that was asked to end (SIGINT, SIGTERM); it counts as lost, like a killed
# process.
_ASKED_TO_END = (130, 143)
# Number of times that a step resumes from its last state after its process or machine was lost.
_RETRIES = 2


@dataclass
class _Attempt:
    """A step that the launcher is running."""

    step: RecipeStep
    fingerprint: str
    number: int
    """The number of times that the step was lost before."""
    events: Path
    launched: Launched
    read: int = 0
    entered: bool = False
    outcome: dict[str, Any] | None = None
    missed: float | None = None
    """The time at which the process reported a result that is not visible here yet."""


@dataclass(frozen=True)
class _ReadyStep:
    """A step that is ready to run."""

    step: RecipeStep
    fingerprint: str
    number: int = 0


class ParallelRun:
    """All steps of a run, which a launcher runs in parallel."""

    def __init__(self, run: RunState, launcher: Launcher) -> None:
        self.run, self.launcher = run, launcher
        self._waiting = list(run.recipe.steps)
        self._ready: list[_ReadyStep] = []
        self._running: list[_Attempt] = []

    def run_all(self) -> None:
        """Run every step that can run, each as soon as the steps that it needs are finished.

        Raises:
            EmbergeError: if the launcher cannot start; errors of steps are in `run.failed` instead.
        """
        if not self.run.recipe.text:
            raise RecipeError(
                "a recipe that was made in Python and has no text cannot be read again by other processes; "
                "write it as YAML, or run it without a launcher"
            )
        with self.launcher.open(self.run.context.machine) as pool:
            try:
                while self._waiting or self._ready or self._running:
                    self._find_ready()
                    self._start_ready_steps(pool)
                    self._follow_running()
                    if self._running:
                        time.sleep(TICK)
            except BaseException:
                self._stop_steps()
                raise

    # ── from waiting to running ─────────────────────────────────────────────────────────────────

    def _find_ready(self) -> None:
        """Find the steps that can start, in order, and record finished and failed steps."""
        run, waiting = self.run, self._waiting
        self._waiting = []
        for step in waiting:
            if run.is_blocked(step):
                continue
            if any(name not in run.finished for name in step.needs):
                self._waiting.append(step)
                continue
            try:
                fingerprint, artifact = run.find(step)
            except Exception as error:
                run.fail(step, error)
                continue
            if artifact is not None:
                run.take(step, fingerprint, artifact)
            else:
                self._ready.append(_ReadyStep(step, fingerprint))
        run.hashes.save()

    def _start_ready_steps(self, pool: StepPool) -> None:
        while self._ready and pool.has_room:
            ready = self._ready.pop(0)
            try:
                self._running.append(self._start_step(pool, ready))
            except (EmbergeError, OSError) as error:
                self.run.fail(ready.step, error)

    def _start_step(self, pool: StepPool, ready: _ReadyStep) -> _Attempt:
        run, step = self.run, ready.step
        work = run.place.work_of(step.id, ready.fingerprint).absolute()
        name = f".worker-{uuid.uuid4().hex[:12]}"
        events = work / f"{name}.jsonl"
        with explain_disk_full(run.place):
            make_folder(work)  # otherwise the folder's name, and so its states, could be lost
            events.touch()
        call = StepCall.into(
            run.recipe,
            run.context,
            step=step.id,
            fingerprint=ready.fingerprint,
            finished=run.fingerprints,
            events=events.name,
        )
        log = events.with_suffix(".log")
        launch = Launch(step.id, work, log, Path(os.getcwd()), call.plain())
        return _Attempt(step, ready.fingerprint, ready.number, events, pool.launch(launch))

    # ── what happens in those that run ──────────────────────────────────────────────────────────

    def _follow_running(self) -> None:
        for attempt in list(self._running):
            ended = attempt.launched.ended()  # before the events are read
            self._record_events(attempt)
            if ended is not None and not self._is_late(attempt, ended):
                self._running.remove(attempt)
                self._finish_attempt(attempt, ended)

    def _is_late(self, attempt: _Attempt, ended: Ended) -> bool:
        """Return whether a process has succeeded and its result may only not be visible on this disk yet."""
        if ended.code != 0:
            return False
        if result_of(self.run.place, attempt.step.id, attempt.fingerprint) is not None:
            return False
        now = time.monotonic()
        attempt.missed = now if attempt.missed is None else attempt.missed
        return now - attempt.missed < PATIENCE

    def _record_events(self, attempt: _Attempt) -> None:
        lines, attempt.read = read_new_lines(attempt.events, attempt.read)
        log, step = self.run.log, attempt.step
        for line in lines:
            match line.pop("event"):
                case "started":
                    attempt.entered = True
                    if attempt.number == 0:
                        log.step_started(step, attempt.fingerprint)
                case "progressed" | "metric" | "warned" as event:
                    log.record(event, step.id, **line)
                case outcome:
                    attempt.outcome = {"event": outcome, **line}

    def _finish_attempt(self, attempt: _Attempt, ended: Ended) -> None:
        """Record the result or the error of a process that ended, or run its step again."""
        run, step, outcome = self.run, attempt.step, attempt.outcome
        if outcome is not None and outcome["event"] == "failed":
            run.fail(step, rebuild_error(outcome))
            return
        try:
            artifact = result_of(run.place, step.id, attempt.fingerprint)
            if artifact is not None:  # it may have been killed after it published
                run.place.finish(step.id, attempt.fingerprint)
        except EmbergeError as error:
            run.fail(step, error)
            return
        if artifact is None:
            self._retry_step(attempt, ended)
            return
        run.take(step, attempt.fingerprint, artifact)
        folder = run.place.result(step.id, attempt.fingerprint)
        seconds = float(outcome["seconds"]) if outcome is not None else 0.0
        run.log.step_finished(step.id, folder, artifact, seconds)

    def _retry_step(self, attempt: _Attempt, ended: Ended) -> None:
        """Run a step again in another process, if it was killed and may be retried."""
        step = attempt.step
        code = ended.code
        if code is not None and code >= 0 and code not in _ASKED_TO_END:
            self.run.fail(step, self._build_unexplained_error(ended))
        elif attempt.number < _RETRIES:
            attempt_number = attempt.number + 1
            self._ready.insert(0, _ReadyStep(step, attempt.fingerprint, attempt_number))
            message = f"{_describe_end(ended)}; it goes on from its last state"
            message += f" ({attempt_number} of {_RETRIES})"
            self.run.log.record("warned", step.id, message=message)
        else:
            times = f" {attempt.number + 1} times" if attempt.number else ""
            self.run.fail(
                step,
                EmbergeError(f"{_describe_end(ended)}{times}; the same command goes on from there"),
            )

    def _build_unexplained_error(self, ended: Ended) -> EmbergeError:
        """Return the error of a process that ended by itself without an event that explains the end."""
        lines = [line.removeprefix("error: ") for line in ended.last_lines.splitlines()]
        message = "; ".join(lines) or f"its process ended with exit code {ended.code} and no result"
        if shutil.disk_usage(self.run.place.path).free < _NOTHING_FREE:
            out_path = self.run.place.path
            message = (
                f"the disk of {out_path} is full; make room and run again: what is done is kept"
            )
        return LaunchedError(message, ended.code or EmbergeError.exit_code)

    # ── the end before the end ──────────────────────────────────────────────────────────────────

    def _stop_steps(self) -> None:
        """End every process and wait up to `LEAVING` seconds for all of them."""
        for attempt in self._running:
            attempt.launched.stop()
            if attempt.entered:
                self.run.log.step_stopped(attempt.step.id)
        end = time.monotonic() + LEAVING
        while self._running and time.monotonic() < end:
            self._running = [
                running for running in self._running if running.launched.ended() is None
            ]
            time.sleep(TICK)


def _describe_end(ended: Ended) -> str:
    if ended.code is None:
        return f"its process was lost{f' ({ended.last_lines})' if ended.last_lines else ''}"
    if ended.code < 0:
        return f"its process was killed by signal {-ended.code}"
    return "its process was asked to end"
