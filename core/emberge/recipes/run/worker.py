"""The process that runs one step for a launcher: it is called by a line on its standard input."""

from __future__ import annotations

import contextlib
from pathlib import Path

from emberge.errors import EmbergeError
from emberge.recipes.run.events import EventWriter
from emberge.recipes.run.run_step import run_step
from emberge.recipes.run.step_call import StepCall
from emberge.results import OutFolder


def work(line: bytes) -> int:
    """Run the step of a call, a line of JSON, writing its events, and return the exit code."""
    return _run(StepCall.read(line))


def _run(call: StepCall) -> int:
    place = OutFolder(Path(call.out))
    events = EventWriter(place.work_of(call.step, call.fingerprint) / call.events)
    try:
        recipe, step, plugins = call.load()
        context = call.context(recipe, plugins, events)
        events.started()
        result = run_step(step, call.fingerprint, context)
        context.targets.hashes.save()
    except Exception as error:
        with contextlib.suppress(
            OSError
        ):  # a full disk, which the launching process notices itself
            events.failed(error)
        return error.exit_code if isinstance(error, EmbergeError) else EmbergeError.exit_code
    else:
        events.finished(result.seconds)
        return 0
    finally:
        with contextlib.suppress(OSError):
            events.close()
