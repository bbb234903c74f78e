"""The process that runs one step for a launcher: it is called by a line on its standard input."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

from emberge.errors import EmbergeError
from emberge.recipes.folder.run_folder import OutFolder
from emberge.recipes.run.events import EventWriter
from emberge.recipes.run.run_step import run_step
from emberge.recipes.run.step_call import StepCall

__all__ = ["work"]


def work() -> int:
    """Run the step that standard input names, write its events, and return the exit code.

    The rest of standard input is a leash: when it ends, so does this process, with all that it started.
    """
    with open(0, "rb", buffering=0, closefd=False) as leash:
        line = leash.readline()
    if not line.endswith(b"\n"):
        return EmbergeError.exit_code  # the process that was to send the call has ended
    threading.Thread(target=_end_with_leash, daemon=True).start()
    return _run(StepCall.read(line))


def _run(call: StepCall) -> int:
    place = OutFolder(Path(call.out))
    events = EventWriter(place.work_of(call.step, call.fingerprint) / call.events)
    try:
        recipe, step, plugins = call.load()
        context = call.context(recipe, plugins, events)
        events.started()
        result = run_step(step, call.fingerprint, context)
        context.results.hashes.save()
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


def _end_with_leash() -> None:
    while os.read(0, 4096):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(EmbergeError.exit_code)
