"""A plugin that listens to a run hears every event of it, and one that fails ends nothing."""

from __future__ import annotations

import inspect
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from emberge import Artifact, EmbergeError, Step, Workspace, hookimpl, parse_recipe, run_recipe
from emberge.plugins import Plugins

from tests.support.hooks import EVENTS, SPECS
from tests.support.result_folders import folders


@dataclass(frozen=True, kw_only=True)
class Noisy(Step):
    """Does nothing, and says so."""

    def run(self, workspace: Workspace) -> Artifact:
        workspace.progress(1, 2, "rows", "half of nothing")
        workspace.metric("loss", 0.5, at=1)
        workspace.warn("nothing was done")
        (workspace.folder / "nothing.txt").write_text("nothing")
        return Artifact(kind="file")


@dataclass(frozen=True, kw_only=True)
class Broken(Step):
    """Fails."""

    def run(self, workspace: Workspace) -> Artifact:
        raise EmbergeError("it is broken")


def plugins_with(listener: object) -> Plugins:
    module = types.ModuleType("steps")
    added = {"noisy": Noisy, "broken": Broken}
    module.register_steps = hookimpl(lambda: added)  # type: ignore[attr-defined]
    plugins = Plugins()
    plugins.register(module, "steps")
    plugins.register(listener, "listener")
    return plugins


class Listener:
    """Hears everything; each event is kept as (name, arguments)."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, dict[str, Any]]] = []

    def of(self, event: str) -> list[dict[str, Any]]:
        return [arguments for name, arguments in self.heard if name == event]


def _hear(event: str) -> Any:
    names = list(inspect.signature(SPECS[event]).parameters)
    scope: dict[str, Any] = {}
    told = ", ".join(f"{n}={n}" for n in names)
    exec(
        f"def {event}(self, {', '.join(names)}): self.heard.append(('{event}', dict({told})))",
        scope,
    )
    return hookimpl(scope[event])


for _event in EVENTS:
    setattr(Listener, _event, _hear(_event))


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Listener:
    """What a listener hears of a run, of the same run again, and of one that fails."""
    listener = Listener()
    plugins = plugins_with(listener)
    out = tmp_path_factory.mktemp("events") / "out"
    for _ in range(2):
        run_recipe(parse_recipe("steps: {one: {noisy: {}}}", plugins), out, plugins)
    with pytest.raises(EmbergeError, match="it is broken"):
        run_recipe(parse_recipe("steps: {two: {broken: {}}}", plugins), out, plugins)
    return listener


@pytest.mark.parametrize("event", sorted(EVENTS))
def test_every_event_is_heard(event: str, heard: Listener) -> None:
    assert heard.of(event)


def test_events_come_in_order_and_carry_what_happened(heard: Listener) -> None:
    names = [name for name, _ in heard.heard]
    assert names[0] == "run_started"
    assert names.index("step_started") < names.index("step_finished") < names.index("run_finished")
    assert names.count("run_started") == names.count("run_finished") == 3
    assert names.count("step_skipped") == 1
    (finished,) = heard.of("step_finished")
    assert (finished["folder"] / "nothing.txt").read_text() == "nothing"
    (failed,) = heard.of("step_failed")
    assert str(failed["error"]) == "it is broken"
    assert [str(run["error"]) for run in heard.of("run_finished")] == [
        "None",
        "None",
        "it is broken",
    ]
    assert {"loss", 0.5, 1} <= set(heard.of("metric_logged")[0].values())


def test_a_listener_that_fails_ends_no_run(tmp_path: Path) -> None:
    class Grumpy:
        @hookimpl
        def step_finished(self, seconds: float) -> None:
            raise RuntimeError("no")

    plugins = plugins_with(Grumpy())
    recipe = parse_recipe("steps: {one: {noisy: {}}}", plugins)
    with pytest.warns(RuntimeWarning, match="plugin 'listener' failed at step_finished"):
        results = folders(run_recipe(recipe, tmp_path / "out", plugins))
    assert (results["one"] / "nothing.txt").is_file()
