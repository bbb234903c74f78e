"""One step in another process: its call (a line of JSON) and its events (lines of JSON in its work folder).

A file in the work folder only needs a disk that both processes can access, so it works with every launcher.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge import errors
from emberge.contracts import Machine
from emberge.errors import EmbergeError, RecipeError
from emberge.hashes import HashCache, UserHashes
from emberge.plugins import Plugins, load_plugins
from emberge.recipes.parse.parse import parse_recipe
from emberge.recipes.recipe import Recipe, RecipeStep
from emberge.recipes.references import Result, Targets
from emberge.recipes.run.run_log import JsonLineFile, StepListener
from emberge.recipes.run.run_step import run_step
from emberge.recipes.run.workspace import RunContext
from emberge.results import OutFolder, read_artifact


class LaunchedError(EmbergeError):
    """An error of a step in another process whose class this process does not know."""

    def __init__(self, message: str, exit_code: int = EmbergeError.exit_code) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def describe_error(error: Exception) -> dict[str, Any]:
    """Return the error that ended a step as an event, for `rebuild_error`."""
    code = error.exit_code if isinstance(error, EmbergeError) else None
    lines = [] if code is not None else traceback.format_exception(error)
    described = {"kind": type(error).__name__, "message": str(error), "exit_code": code}
    return {"event": "failed", **described, "traceback": "".join(lines)}


def read_new_lines(path: Path, since: int) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of a file's complete lines from byte `since` on, and the byte to continue from.

    The file is opened at each call, so that a network file system checks for new content.
    """
    try:
        with path.open("rb") as file:
            file.seek(since)
            content = file.read()
    except FileNotFoundError:
        return [], since
    whole_lines = content[: content.rfind(b"\n") + 1]
    return [json.loads(line) for line in whole_lines.splitlines() if line], since + len(whole_lines)


def rebuild_error(event: Mapping[str, Any]) -> Exception:
    """Return the error of a `failed` event, of its class or, if that is unknown, of a class with its name."""
    kind, message, code = event["kind"], event["message"], event["exit_code"]
    if code is None:
        # A class of the same name, so that it is shown like an error of this process.
        unknown_error: Exception = type(kind, (Exception,), {})(message)
        unknown_error.add_note(event["traceback"])
        return unknown_error
    our_error = getattr(errors, kind, None) if kind in errors.__all__ else None
    if (
        isinstance(our_error, type)
        and issubclass(our_error, EmbergeError)
        and our_error.exit_code == code
    ):
        return our_error(message)
    return LaunchedError(message, code)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCall:
    """One step of a recipe, with all values that another process needs to read and run it.

    `finished` are the fingerprints of the results in `out`; `events` is the file in the step's work folder
    into which the process writes its events. `machine` is the share of its machine that the process may use.
    """

    out: str
    step: str
    fingerprint: str
    finished: Mapping[str, str]
    events: str
    text: str
    path: str | None
    overrides: tuple[str, ...]
    plugins: tuple[str, ...]
    block: tuple[str, ...]
    machine: Mapping[str, Any] | None = None

    @classmethod
    def into(cls, recipe: Recipe, context: RunContext, **call: Any) -> StepCall:
        """Build the call of a step from its id, `fingerprint`, the `finished` steps and `events`."""
        plugins = context.targets.plugins
        return cls(
            out=str(context.place.path.absolute()),
            text=recipe.text,
            path=str(recipe.path) if recipe.path else None,
            overrides=recipe.overrides,
            plugins=tuple(os.path.abspath(file) for file in plugins.files),
            block=plugins.blocked,
            **call,
        )

    @classmethod
    def read(cls, line: bytes) -> StepCall:
        """Read a call from its line of JSON."""
        values = json.loads(line)
        for name in ("overrides", "plugins", "block"):
            values[name] = tuple(values[name])
        return cls(**values)

    def plain(self) -> dict[str, Any]:
        """Return the call as JSON values."""
        return dataclasses.asdict(self)

    def load(self) -> tuple[Recipe, RecipeStep, Plugins]:
        """Return the recipe, the step, and the plugins that its components come from.

        Raises:
            RecipeError: if this process reads the recipe differently.
        """
        plugins = load_plugins([Path(file) for file in self.plugins], block=self.block)
        path = Path(self.path) if self.path else None
        recipe = parse_recipe(self.text, plugins, path=path, overrides=self.overrides)
        matching = [step for step in recipe.steps if step.id == self.step]
        if not matching:
            raise RecipeError(f"the recipe has no step '{self.step}' here; are all plugins alike?")
        return recipe, matching[0], plugins

    def context(self, recipe: Recipe, plugins: Plugins, listener: StepListener) -> RunContext:
        """Build the step's RunContext: folder, results, machine and seed."""
        machine = dict(self.machine or {})
        out_folder = OutFolder(Path(self.out))
        return RunContext(
            place=out_folder,
            targets=build_finished_targets(recipe, out_folder, plugins, self.finished),
            listener=listener,
            machine=Machine(**{**machine, "devices": tuple(machine.get("devices", ("cpu",)))}),
            seed=recipe.seed,
            recipe=recipe.hash,
        )


def build_finished_targets(
    recipe: Recipe, place: OutFolder, plugins: Plugins, finished: Mapping[str, str]
) -> Targets:
    """Return the references' targets, including finished steps, for a process that runs only one step."""
    hashes = HashCache(place.store / "hashes.json", place.path, UserHashes())
    targets = Targets(plugins, hashes)
    steps = {recipe_step.id: recipe_step.step for recipe_step in recipe.steps}
    for name, fingerprint in finished.items():
        folder = place.result(name, fingerprint)
        artifact = read_artifact(folder)
        if artifact is None:
            continue  # not visible on this machine; a step that needs it reports that
        step = steps[name]
        targets.add(name, Result(folder, artifact, fingerprint, step.adapts()))
    return targets


def work(line: bytes) -> int:
    """Run the step of a call (a line of JSON), write its events, and return the exit code."""
    call = StepCall.read(line)
    out_folder = OutFolder(Path(call.out))
    events = JsonLineFile(out_folder.work_of(call.step, call.fingerprint) / call.events)

    def record(event: str, _: str, **details: Any) -> None:
        events.append({"event": event, **details})

    try:
        recipe, step, plugins = call.load()
        context = call.context(recipe, plugins, record)
        events.append({"event": "started", "pid": os.getpid()})
        result = run_step(step, call.fingerprint, context)
        context.targets.hashes.save()
    except Exception as error:
        with contextlib.suppress(OSError):  # the launching process itself notices a full disk
            events.append(describe_error(error))
        return error.exit_code if isinstance(error, EmbergeError) else EmbergeError.exit_code
    else:
        events.append({"event": "finished", "seconds": result.seconds})
        return 0
    finally:
        with contextlib.suppress(OSError):
            events.close()
