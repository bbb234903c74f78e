"""Steps side by side: those whose needs are finished go to a launcher's crew, and what happens is told here.

The steps work in processes that see OUT; each appends its events to a file in its work folder. This process
alone reads those, tells the plugins, and writes the run's log, status and metrics.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge.contracts.launcher import Ended, Launch, Launched, Launcher, StepPool
from emberge.errors import EmbergeError, RecipeError
from emberge.recipes.recipe import RecipeStep
from emberge.recipes.run.events import LaunchedError, error_of, new_lines
from emberge.recipes.run.run_step import explain_disk_full, result_of
from emberge.recipes.run.step_call import StepCall

if TYPE_CHECKING:
    from emberge.recipes.run.run_recipe import RunState

__all__ = ["ParallelRun"]

TICK = 0.2  # seconds between two looks at what runs: progress is told five times a second
# How long a shared disk may take to show here what a process has left there.
PATIENCE = 10.0
# How long processes may take to end when the run is stopped, beside what their crew grants them.
LEAVING = 10.0
# A disk with fewer bytes than this may have kept a process from saying what was wrong.
_NOTHING_FREE = 2**20
# Exit codes of a process that was asked to end (SIGINT, SIGTERM): as lost as one that was killed.
_ASKED_TO_END = (130, 143)


@dataclass
class _Attempt:
    """A step in the crew's hands."""

    step: RecipeStep
    fingerprint: str
    number: int
    """How often the step was lost before."""
    events: Path
    launched: Launched
    read: int = 0
    entered: bool = False
    outcome: dict[str, Any] | None = None
    missed: float | None = None
    """Since when a result is waited for that its process says is there."""


@dataclass(frozen=True)
class _Ready:
    """A step that can run."""

    step: RecipeStep
    fingerprint: str
    number: int = 0


class ParallelRun:
    """Runs all steps of a run by a launcher."""

    def __init__(self, run: RunState, launcher: Launcher) -> None:
        self.run, self.launcher = run, launcher
        self._waiting = list(run.recipe.steps)
        self._ready: list[_Ready] = []
        self._running: list[_Attempt] = []
        self._told: set[tuple[str, str]] = set()

    def everything(self) -> None:
        """RunState every step that can be, each once those that it needs are finished.

        Raises:
            EmbergeError: when the launcher cannot begin; errors of steps are left with the run.
        """
        if not self.run.recipe.text:
            raise RecipeError(
                "a recipe that was made in Python and has no text cannot be read again by other processes; "
                "write it as YAML, or run it without a launcher"
            )
        with self.launcher.open(self.run.around.machine) as crew:
            try:
                while self._waiting or self._ready or self._running:
                    self._find_ready()
                    self._launch(crew)
                    self._hear()
                    if self._running:
                        time.sleep(TICK)
            except BaseException:
                self._stop()
                raise

    # ── from waiting to running ─────────────────────────────────────────────────────────────────

    def _find_ready(self) -> None:
        """Look at the steps in order, so that what is finished or failed is known to those after it."""
        run, waiting = self.run, self._waiting
        self._waiting = []
        for step in waiting:
            if run.is_blocked(step):
                continue
            if any(name not in run.finished for name in step.needs):
                self._waiting.append(step)
                continue
            try:
                fingerprint, artifact = run.found(step)
            except Exception as error:
                run.fail(step, error)
                continue
            if artifact is not None:
                run.take(step, fingerprint, artifact)
            else:
                self._ready.append(_Ready(step, fingerprint))
        run.hashes.save()

    def _launch(self, crew: StepPool) -> None:
        while self._ready and crew.has_room:
            ready = self._ready.pop(0)
            try:
                self._running.append(self._launched(crew, ready))
            except (EmbergeError, OSError) as error:
                self.run.fail(ready.step, error)

    def _launched(self, crew: StepPool, ready: _Ready) -> _Attempt:
        run, step = self.run, ready.step
        work = run.place.work_of(step.id, ready.fingerprint).absolute()
        name = f".worker-{uuid.uuid4().hex[:12]}"
        events = work / f"{name}.jsonl"
        with explain_disk_full(run.place):
            work.mkdir(parents=True, exist_ok=True)
            events.touch()
        call = StepCall.into(
            run.recipe,
            run.around,
            step=step.id,
            fingerprint=ready.fingerprint,
            finished=run.made,
            events=events.name,
        )
        log = events.with_suffix(".log")
        launch = Launch(step.id, work, log, Path(os.getcwd()), call.plain())
        return _Attempt(step, ready.fingerprint, ready.number, events, crew.launch(launch))

    # ── what happens in those that run ──────────────────────────────────────────────────────────

    def _hear(self) -> None:
        for attempt in list(self._running):
            ended = attempt.launched.ended()  # looked at first: what it said before is in the file
            self._tell(attempt)
            if ended is not None and not self._is_late(attempt, ended):
                self._running.remove(attempt)
                self._settle(attempt, ended)

    def _is_late(self, attempt: _Attempt, ended: Ended) -> bool:
        """Whether a process has ended well, and the disk does not show its result here yet."""
        if ended.code != 0:
            return False
        if result_of(self.run.place, attempt.step.id, attempt.fingerprint) is not None:
            return False
        now = time.monotonic()
        attempt.missed = now if attempt.missed is None else attempt.missed
        return now - attempt.missed < PATIENCE

    def _tell(self, attempt: _Attempt) -> None:
        lines, attempt.read = new_lines(attempt.events, attempt.read)
        record, step = self.run.record, attempt.step
        for line in lines:
            match line.pop("event"):
                case "started":
                    attempt.entered = True
                    if attempt.number == 0:
                        record.step_started(step, attempt.fingerprint)
                case "progressed":
                    record.step_progressed(step.id, **line)
                case "metric":
                    record.metric_logged(attempt.fingerprint, step.id, line["row"])
                case "warned":
                    self._warn(step, line["message"])
                case outcome:
                    attempt.outcome = {"event": outcome, **line}

    def _warn(self, step: RecipeStep, message: str) -> None:
        """Say a thing once, also when the step that says it is run again."""
        if (step.id, message) not in self._told:
            self._told.add((step.id, message))
            self.run.record.step_warned(step.id, message)

    def _settle(self, attempt: _Attempt, ended: Ended) -> None:
        """A process has ended: well, by an error of the step, or before its time."""
        run, step, outcome = self.run, attempt.step, attempt.outcome
        if outcome is not None and outcome["event"] == "failed":
            run.fail(step, error_of(outcome))
            return
        try:
            artifact = result_of(run.place, step.id, attempt.fingerprint)
            if artifact is not None:  # it may have been killed behind its last act
                run.place.finish(step.id, attempt.fingerprint)
        except EmbergeError as error:
            run.fail(step, error)
            return
        if artifact is None:
            self._lost(attempt, ended)
            return
        run.take(step, attempt.fingerprint, artifact)
        folder = run.place.result(step.id, attempt.fingerprint)
        seconds = float(outcome["seconds"]) if outcome is not None else 0.0
        run.record.step_finished(step.id, folder, artifact, seconds)

    def _lost(self, attempt: _Attempt, ended: Ended) -> None:
        """Have the step go on in another process, if it was killed and not for the last time."""
        step, retries = attempt.step, self.launcher.retries
        code = ended.code
        if code is not None and code >= 0 and code not in _ASKED_TO_END:
            self.run.fail(step, self._refusal(ended))
        elif attempt.number < retries:
            again = attempt.number + 1
            self._ready.insert(0, _Ready(step, attempt.fingerprint, again))
            self.run.record.step_warned(
                step.id, f"{_how(ended)}; it goes on from its last state ({again} of {retries})"
            )
        else:
            times = f" {attempt.number + 1} times" if attempt.number else ""
            self.run.fail(
                step, EmbergeError(f"{_how(ended)}{times}; the same command goes on from there")
            )

    def _refusal(self, ended: Ended) -> EmbergeError:
        """What a process said that ended by itself and has told nothing of the step."""
        lines = [line.removeprefix("error: ") for line in ended.last_lines.splitlines()]
        said = "; ".join(lines) or f"its process ended with exit code {ended.code} and no result"
        if shutil.disk_usage(self.run.place.path).free < _NOTHING_FREE:
            said = f"the disk of {self.run.place.path} is full; make room and run again: what is done is kept"
        return LaunchedError(said, ended.code or EmbergeError.exit_code)

    # ── the end before the end ──────────────────────────────────────────────────────────────────

    def _stop(self) -> None:
        """End every process and wait until it has ended, for some seconds."""
        for attempt in self._running:
            attempt.launched.stop()
            if attempt.entered:
                self.run.record.step_stopped(attempt.step.id)
        end = time.monotonic() + LEAVING
        while self._running and time.monotonic() < end:
            self._running = [each for each in self._running if each.launched.ended() is None]
            time.sleep(TICK)


def _how(ended: Ended) -> str:
    if ended.code is None:
        return f"its process was lost{f' ({ended.last_lines})' if ended.last_lines else ''}"
    if ended.code < 0:
        return f"its process was killed by signal {-ended.code}"
    return "its process was asked to end"
