"""The process that runs one step of a launcher's pool: `python -m emberge_local.worker`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import threading
from pathlib import Path

from emberge import EmbergeError, Machine, RecipeError, load_plugins, parse_recipe
from emberge.contracts import Event
from emberge.interpreter import leave_process, set_torch_defaults
from emberge.recipes import JsonLineFile, RecipeStep, RunContext, find_targets, run_step
from emberge.results import OutFolder

from emberge_local.worker_messages import FINISHED, STARTED, StepCall, build_failed_event

_ASKED_TO_END_CODE = 143  # the exit code after SIGTERM


def main() -> int:
    """Run the step of the call on standard input, and return the exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    set_torch_defaults()
    line = read_call()
    if line is None:
        return EmbergeError.exit_code
    try:
        return run_call(line)
    except KeyboardInterrupt:
        return _ASKED_TO_END_CODE


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def read_call() -> bytes | None:
    """Return the first line of standard input; from then on, this process ends with its parent.

    The result is None if the parent ended before it wrote a complete line.
    """
    with open(0, "rb", buffering=0, closefd=False) as stream:
        line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    threading.Thread(target=_wait_for_end, daemon=True).start()
    return line


def _wait_for_end() -> None:
    """End this process and its process group as soon as its standard input ends."""
    while os.read(0, 4096):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(EmbergeError.exit_code)


def run_call(line: bytes) -> int:
    """Run the step of a call (a line of JSON), write its events, and return the exit code."""
    call = StepCall(**json.loads(line))
    events = JsonLineFile(Path(call.events))
    try:
        step, context = _prepare_step(call, events)
        events.append({"event": STARTED, "pid": os.getpid()})
        finished = run_step(step, call.fingerprint, context)
        context.targets.hashes.save()
    except Exception as error:  # of any class, as a step is a plugin's code
        with contextlib.suppress(OSError):  # the launching process itself notices a full disk
            events.append(build_failed_event(error))
        return error.exit_code if isinstance(error, EmbergeError) else EmbergeError.exit_code
    else:
        events.append({"event": FINISHED, "seconds": finished.seconds})
        return 0
    finally:
        with contextlib.suppress(OSError):
            events.close()


def _prepare_step(call: StepCall, events: JsonLineFile) -> tuple[RecipeStep, RunContext]:
    """Return (step of the call, context in which it writes its events into a file)."""

    def write_event(event: Event) -> None:
        facts = dataclasses.asdict(event)
        del facts["out"]
        events.append({"event": type(event).__name__, **facts})

    plugins = load_plugins([Path(file) for file in call.plugins], block=call.blocked)
    path = Path(call.path) if call.path else None
    recipe = parse_recipe(call.text, plugins, path=path, overrides=call.overrides)
    step = next((step for step in recipe.steps if step.id == call.step), None)
    if step is None:
        raise RecipeError(f"the recipe has no step '{call.step}' here; are all plugins alike?")
    out_folder = OutFolder(Path(call.out))
    context = RunContext(
        out_folder=out_folder,
        targets=find_targets(recipe, out_folder, plugins, call.finished),
        record=write_event,
        machine=Machine(**{**call.machine, "devices": tuple(call.machine["devices"])}),
        recipe=recipe,
    )
    return step, context


if __name__ == "__main__":
    leave_process(main())
