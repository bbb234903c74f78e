"""Steps in processes of a launcher: each as soon as the steps that it needs are finished.

The call of a step is a line of JSON on its process's standard input. The process appends its events to a file
in the step's work folder, which needs only a disk that both can access. The process of the run reads those
files, and it alone writes the run's log, status and metrics.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import time
import traceback
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge import contracts, errors
from emberge.contracts import (
    Ended,
    Event,
    Launch,
    Launched,
    Launcher,
    Machine,
    StepFinished,
    StepPool,
    StepWarned,
)
from emberge.errors import EmbergeError, RecipeError
from emberge.files import make_folder
from emberge.hashes import HashCache, find_user_table
from emberge.plugins import Plugins, load_plugins
from emberge.recipes.parse.parse import parse_recipe
from emberge.recipes.recipe import Recipe, RecipeStep
from emberge.recipes.run.recipe_run import RecipeRun
from emberge.recipes.run.run_log import JsonLineFile
from emberge.recipes.run.step_run import (
    RunContext,
    describe_disk_full,
    explain_disk_full,
    find_result,
    run_step,
)
from emberge.recipes.targets import Result, Targets
from emberge.results import OutFolder, read_artifact

TICK = 0.2
"""Seconds between two checks of running steps: progress is announced five times a second."""
PATIENCE = 10.0
"""Seconds that a shared disk may take to show the result that a process on another machine wrote."""
LEAVING = 10.0
"""Seconds that processes may take to end when the run is stopped, in addition to their launcher's time."""
# If fewer bytes than this are free, the full disk may have kept a process from writing its error.
_NOTHING_FREE = 2**20
# Exit codes of a process that was asked to end (SIGINT, SIGTERM); it counts as lost, like a killed one.
_ASKED_TO_END = (130, 143)
# Number of times that a step resumes from its last state after its process or machine was lost.
_RETRIES = 2


@dataclass
class _Attempt:
    """A step that is ready to run, or that the launcher is running."""

    step: RecipeStep
    fingerprint: str
    number: int = 0
    """The number of times that the step was lost before."""
    read: int = 0
    """The bytes of the events' file that were read."""
    entered: bool = False
    outcome: Mapping[str, Any] | None = None
    missed: float | None = None
    """The time at which the process reported a result that is not visible here yet."""


class ByLauncher:
    """The executor that gives steps to a launcher, which runs them in parallel."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._ready: list[_Attempt] = []
        self._running: list[tuple[_Attempt, Path, Launched]] = []

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
        waiting = list(run.recipe.steps)
        with self._launcher.open(run.context.machine) as pool:
            try:
                while waiting or self._ready or self._running:
                    waiting = self._find_ready(run, waiting)
                    self._start_ready(run, pool)
                    self._follow_running(run)
                    if self._running:
                        time.sleep(TICK)
            except BaseException:
                self._stop_running(run)
                raise

    def _find_ready(self, run: RecipeRun, waiting: list[RecipeStep]) -> list[RecipeStep]:
        """Find the steps that can start or are finished; return those that still wait."""
        still_waiting = []
        for step in waiting:
            if run.is_blocked(step):
                continue
            if any(name not in run.finished for name in step.needs):
                still_waiting.append(step)
                continue
            try:
                fingerprint = run.find(step)
            except Exception as error:
                run.fail(step, error)
                continue
            self._ready += [] if fingerprint is None else [_Attempt(step, fingerprint)]
        run.hashes.save()
        return still_waiting

    def _start_ready(self, run: RecipeRun, pool: StepPool) -> None:
        while self._ready and pool.has_room:
            attempt = self._ready.pop(0)
            try:
                launch, events = _build_launch(run, attempt.step, attempt.fingerprint)
                self._running.append((attempt, events, pool.launch(launch)))
            except (EmbergeError, OSError) as error:
                run.fail(attempt.step, error)

    def _follow_running(self, run: RecipeRun) -> None:
        for entry in list(self._running):
            attempt, events, launched = entry
            ended = launched.ended()  # before the events are read
            _record_events(run, attempt, events)
            if ended is not None and not _is_late(run, attempt, ended):
                self._running.remove(entry)
                self._finish(run, attempt, ended)

    def _finish(self, run: RecipeRun, attempt: _Attempt, ended: Ended) -> None:
        """Record the result or the error of a process that ended, or run its step again."""
        step, outcome = attempt.step, attempt.outcome
        if outcome is not None and outcome["event"] == "failed":
            run.fail(step, _rebuild_error(outcome))
            return
        try:
            artifact = find_result(run.out_folder, step.id, attempt.fingerprint)
            if artifact is not None:  # the process may have been killed after it published
                seconds = float(outcome["seconds"]) if outcome is not None else 0.0
                out, link = run.out_folder.path, run.out_folder.link(step.id)
                event = StepFinished(out, step.id, link, artifact, seconds)
                run.finish(step, attempt.fingerprint, event)
                return
        except EmbergeError as error:
            run.fail(step, error)
            return
        self._retry(run, attempt, ended)

    def _retry(self, run: RecipeRun, attempt: _Attempt, ended: Ended) -> None:
        """Run a step again in another process, if it was killed and may be retried."""
        step, code, number = attempt.step, ended.code, attempt.number + 1
        if code is not None and code >= 0 and code not in _ASKED_TO_END:
            run.fail(step, _build_unexplained_error(run, ended))
        elif attempt.number < _RETRIES:
            self._ready.insert(0, _Attempt(step, attempt.fingerprint, number))
            message = (
                f"{_describe_end(ended)}; it goes on from its last state ({number} of {_RETRIES})"
            )
            run.log.record(StepWarned(run.out_folder.path, step.id, message))
        else:
            times = f" {number} times" if attempt.number else ""
            message = f"{_describe_end(ended)}{times}; the same command goes on from there"
            run.fail(step, EmbergeError(message))

    def _stop_running(self, run: RecipeRun) -> None:
        """End every process and wait up to `LEAVING` seconds for all of them."""
        for attempt, _, launched in self._running:
            launched.stop()
            if attempt.entered:
                run.log.note_stopped(attempt.step.id)
        end = time.monotonic() + LEAVING
        while self._running and time.monotonic() < end:
            self._running = [entry for entry in self._running if entry[2].ended() is None]
            time.sleep(TICK)


def _build_launch(run: RecipeRun, step: RecipeStep, fingerprint: str) -> tuple[Launch, Path]:
    """Create the step's work folder; return the launch and the file in which the events will be."""
    recipe, plugins = run.recipe, run.context.targets.plugins
    work = run.out_folder.work_of(step.id, fingerprint).absolute()
    events = work / f".worker-{uuid.uuid4().hex[:12]}.jsonl"
    with explain_disk_full(run.out_folder):
        make_folder(work)  # otherwise the folder's name, and so its states, could be lost
        events.touch()
    call = {
        "out": str(run.out_folder.path.absolute()),
        "step": step.id,
        "fingerprint": fingerprint,
        "finished": run.fingerprints,
        "events": str(events),
        "text": recipe.text,
        "path": str(recipe.path) if recipe.path else None,
        "overrides": recipe.overrides,
        "plugins": [os.path.abspath(file) for file in plugins.files],
        "block": plugins.blocked,
    }
    return Launch(step.id, work, events.with_suffix(".log"), Path.cwd(), call), events


def _record_events(run: RecipeRun, attempt: _Attempt, events: Path) -> None:
    lines, attempt.read = JsonLineFile.read(events, attempt.read)
    for line in lines:
        name = line.pop("event")
        if name == "started":
            attempt.entered = True
            if attempt.number == 0:
                run.start(attempt.step, attempt.fingerprint)
        elif name in contracts.__all__:
            run.log.record(getattr(contracts, name)(run.out_folder.path, **line))
        else:
            attempt.outcome = {"event": name, **line}


def _is_late(run: RecipeRun, attempt: _Attempt, ended: Ended) -> bool:
    """Return whether a process has succeeded and its result may only not be visible on this disk yet."""
    if ended.code != 0:
        return False
    if find_result(run.out_folder, attempt.step.id, attempt.fingerprint) is not None:
        return False
    now = time.monotonic()
    attempt.missed = now if attempt.missed is None else attempt.missed
    return now - attempt.missed < PATIENCE


def _describe_end(ended: Ended) -> str:
    if ended.code is None:
        return f"its process was lost{f' ({ended.last_lines})' if ended.last_lines else ''}"
    if ended.code < 0:
        return f"its process was killed by signal {-ended.code}"
    return "its process was asked to end"


class LaunchedError(EmbergeError):
    """An error of a step in another process whose class this process does not know."""

    def __init__(self, message: str, exit_code: int = EmbergeError.exit_code) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def _build_unexplained_error(run: RecipeRun, ended: Ended) -> EmbergeError:
    """Return the error of a process that ended by itself without an event that explains the end."""
    lines = [line.removeprefix("error: ") for line in ended.last_lines.splitlines()]
    message = "; ".join(lines) or f"its process ended with exit code {ended.code} and no result"
    if shutil.disk_usage(run.out_folder.path).free < _NOTHING_FREE:
        message = describe_disk_full(run.out_folder)
    return LaunchedError(message, ended.code or EmbergeError.exit_code)


def _describe_error(error: Exception) -> dict[str, Any]:
    """Return the error that ended a step as an event, for `_rebuild_error`."""
    code = error.exit_code if isinstance(error, EmbergeError) else None
    lines = [] if code is not None else traceback.format_exception(error)
    facts = {"kind": type(error).__name__, "message": str(error), "exit_code": code}
    return {"event": "failed", **facts, "traceback": "".join(lines)}


def _rebuild_error(event: Mapping[str, Any]) -> Exception:
    """Return the error of a `failed` event, of its class or, if that is unknown, of a class with its name."""
    kind, message, code = event["kind"], event["message"], event["exit_code"]
    if code is None:
        # A class of the same name, so that it is shown like an error of this process.
        unknown_error: Exception = type(kind, (Exception,), {})(message)
        unknown_error.add_note(event["traceback"])
        return unknown_error
    known_class = getattr(errors, kind, None) if kind in errors.__all__ else None
    if known_class is not None and known_class.exit_code == code:
        known_error: Exception = known_class(message)
        return known_error
    return LaunchedError(message, code)


# ── the process of one step ─────────────────────────────────────────────────────────────────────


def work(line: bytes) -> int:
    """Run the step of a call (a line of JSON), write its events, and return the exit code."""
    call = json.loads(line)
    events = JsonLineFile(Path(call["events"]))

    def write_event(event: Event) -> None:
        facts = dataclasses.asdict(event)
        del facts["out"]
        events.append({"event": type(event).__name__, **facts})

    try:
        plugins = load_plugins([Path(file) for file in call["plugins"]], block=call["block"])
        path = Path(call["path"]) if call["path"] else None
        recipe = parse_recipe(call["text"], plugins, path=path, overrides=call["overrides"])
        step = next((step for step in recipe.steps if step.id == call["step"]), None)
        if step is None:
            raise RecipeError(
                f"the recipe has no step '{call['step']}' here; are all plugins alike?"
            )
        out_folder = OutFolder(Path(call["out"]))
        machine = {**call["machine"], "devices": tuple(call["machine"]["devices"])}
        context = RunContext(
            out_folder=out_folder,
            targets=find_targets(recipe, out_folder, plugins, call["finished"]),
            hear=write_event,
            machine=Machine(**machine),
            seed=recipe.seed,
            recipe=recipe.hash,
        )
        events.append({"event": "started", "pid": os.getpid()})
        finished = run_step(step, call["fingerprint"], context)
        context.targets.hashes.save()
    except Exception as error:
        with contextlib.suppress(OSError):  # the launching process itself notices a full disk
            events.append(_describe_error(error))
        return error.exit_code if isinstance(error, EmbergeError) else EmbergeError.exit_code
    else:
        events.append({"event": "finished", "seconds": finished.seconds})
        return 0
    finally:
        with contextlib.suppress(OSError):
            events.close()


def find_targets(
    recipe: Recipe, out_folder: OutFolder, plugins: Plugins, finished: Mapping[str, str]
) -> Targets:
    """Return the references' targets for a process that runs one step, with the `finished` steps.

    `finished` maps a step's id to the fingerprint of its result.
    """
    targets = Targets(plugins, HashCache(find_user_table()))
    steps = {recipe_step.id: recipe_step.step for recipe_step in recipe.steps}
    for name, fingerprint in finished.items():
        folder = out_folder.result(name, fingerprint)
        artifact = read_artifact(folder)
        if artifact is not None:  # visible on this machine; otherwise a step that needs it says so
            targets.add(name, Result(folder, artifact, fingerprint, steps[name].adapts()))
    return targets
