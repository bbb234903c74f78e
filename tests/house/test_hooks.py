"""Every hook is documented, listed in the README of plugins, and called; every event of a run is heard."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import emberge
import pytest
from emberge import (
    Artifact,
    EmbergeError,
    PluginError,
    Step,
    Workspace,
    hookimpl,
    hookspecs,
    load_plugins,
    merge_blocks,
    parse_recipe,
    run_recipe,
)
from emberge.architectures import Architecture
from emberge.contracts import Event, MetricLogged, RunFinished, StepFailed, StepFinished
from emberge.plugin_verbs import Verb
from emberge.plugins import KINDS, Plugins
from emberge.testing import check_strategy

from tests.support.places import ROOT
from tests.support.sources import PLUGINS

README = (PLUGINS / "README.md").read_text("utf-8")
SPECS: dict[str, Callable[..., Any]] = {
    name: value for name, value in vars(hookspecs).items() if hasattr(value, "emberge_spec")
}
REGISTERING = {name for name in SPECS if name.startswith("register_")}
ASKING = {name for name, spec in SPECS.items() if spec.emberge_spec["firstresult"]}
EVENTS = set(SPECS) - REGISTERING - ASKING
# What each hook that adds components adds.
CONTRACTS: dict[str, type] = {
    hook: getattr(emberge, contracts[0]) for hook, contracts in KINDS.values()
}
VERB = Verb(summary="do nothing", examples="", run="no_module:f")
ADDITIONS: dict[str, Any] = {
    "register_architectures": {
        "nothing_at_all": Architecture(config="no_module:C", model="no_module:M")
    },
    "register_verbs": {"nothing": VERB},
}


def component(contract: type) -> type:
    """Return a subclass that follows the contract and does nothing."""
    body = {"__doc__": "A component that does nothing.", "__annotations__": {}}
    return dataclass(frozen=True, kw_only=True)(type("Nothing", (contract,), body))


def arguments_of(name: str) -> dict[str, Any]:
    """Return a value of its own for each argument of a hook."""
    return {argument: f"the {argument}" for argument in inspect.signature(SPECS[name]).parameters}


def implement(name: str, heard: list[tuple[str, dict[str, Any]]], answer: Any = None) -> Any:
    """Return an implementation of a hook that takes every argument, notes them, and answers."""
    words = [*inspect.signature(SPECS[name]).parameters]
    scope: dict[str, Any] = {"heard": heard, "answer": answer}
    # Written out, because pluggy reads an implementation's arguments from its signature.
    exec(
        f"def {name}({', '.join(words)}):\n"
        f"    heard.append(('{name}', dict({', '.join(f'{a}={a}' for a in words)})))\n"
        f"    return answer\n",
        scope,
    )
    return hookimpl(scope[name])


def plugin(name: str, **hooks: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(hooks)
    return module


def test_the_specification_is_a_table_of_contents() -> None:
    assert {*CONTRACTS, *ADDITIONS} == REGISTERING
    assert {"locate_model", "read_recipe"} == ASKING
    assert {"hear_event"} == EVENTS


def test_every_hook_is_documented_and_stands_in_the_readme_with_its_arguments() -> None:
    for name, spec in SPECS.items():
        doc = inspect.getdoc(spec) or ""
        assert doc.partition("\n")[0].endswith("."), f"{name}: one full sentence first"
        assert len(doc.split()) >= 5, name
    lines = README.partition("| hook ")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    calls = {f"{n}({', '.join(inspect.signature(spec).parameters)})" for n, spec in SPECS.items()}
    assert {row[0].strip("`") for row in rows} == calls
    assert all("".join(row[1:]) for row in rows), "each row says what the hook is for"


def test_a_plugin_that_implements_every_hook_hears_all_of_them() -> None:
    heard: list[tuple[str, dict[str, Any]]] = []
    answers = {name: {"nothing": component(contract)} for name, contract in CONTRACTS.items()}
    answers |= ADDITIONS | dict.fromkeys(ASKING, "an answer")
    hooks = {name: implement(name, heard, answers.get(name)) for name in SPECS}
    plugins = Plugins()
    plugins.register(plugin("everything", **hooks), "everything", "acme", "1.0")
    assert {name for name, _ in heard} == REGISTERING
    assert {c.full_name for c in plugins.components} == {"everything:nothing"}
    assert {c.kind for c in plugins.components} == set(KINDS)
    assert plugins.verbs == {"nothing": VERB}
    for name in ASKING:
        assert getattr(plugins.hook, name)(**arguments_of(name)) == "an answer"
    event: Any = "the event"
    plugins.announce(event)
    assert dict(heard) == {name: arguments_of(name) for name in SPECS}


def test_every_misspelt_hook_is_refused_by_name() -> None:
    for name in SPECS:
        function = hookimpl(types.FunctionType((lambda: None).__code__, {}))
        with pytest.raises(PluginError, match=rf"'sloppy'.*'{name}s'; did you mean '{name}'"):
            Plugins().register(plugin("sloppy", **{f"{name}s": function}), "sloppy")


# Events of a run.


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


def plugins_with(listener: types.ModuleType) -> Plugins:
    added = hookimpl(lambda: {"noisy": Noisy, "broken": Broken})
    plugins = Plugins()
    plugins.register(plugin("steps", register_steps=added), "steps")
    plugins.register(listener, "listener")
    return plugins


def test_every_event_is_heard_in_order_and_carries_what_happened(tmp_path: Path) -> None:
    heard: list[Event] = []
    plugins = plugins_with(
        plugin("listener", hear_event=hookimpl(lambda event: heard.append(event)))
    )
    for _ in range(2):
        run_recipe(parse_recipe("steps: {one: {noisy: {}}}", plugins), tmp_path / "out", plugins)
    with pytest.raises(EmbergeError, match="it is broken"):
        run_recipe(parse_recipe("steps: {two: {broken: {}}}", plugins), tmp_path / "out", plugins)
    names = [type(event).__name__ for event in heard]
    first = ["RunStarted", "StepStarted", "StepProgressed", "MetricLogged", "StepWarned"]
    assert names == [
        *[*first, "StepFilled", "StepFinished", "RunFinished"],
        *["RunStarted", "StepSkipped", "RunFinished"],
        *["RunStarted", "StepStarted", "StepFailed", "RunFinished"],
    ]
    assert all(event.out == tmp_path / "out" for event in heard)
    finished, failed = heard[6], heard[-2]
    assert isinstance(finished, StepFinished)
    assert (finished.folder / "nothing.txt").read_text() == "nothing"
    assert isinstance(failed, StepFailed)
    assert str(failed.error) == "it is broken"
    errors = [str(event.error) for event in heard if isinstance(event, RunFinished)]
    assert errors == ["None", "None", "it is broken"]
    assert heard[3] == MetricLogged(tmp_path / "out", "one", "loss", 0.5, 1)


# plugins/README.md: a plugin in thirty lines, and what each plugin adds.


def test_the_plugin_of_the_readme_has_thirty_lines_and_takes_the_median(tmp_path: Path) -> None:
    import torch

    code, *others = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    assert not others
    assert len(code.splitlines()) <= 30
    assert f"```python\n{code}```" in (ROOT / "README.md").read_text("utf-8")
    (tmp_path / "mine.py").write_text(code)
    median = load_plugins([tmp_path / "mine.py"], block=("*",)).find("median", "merge strategy")
    tensors = torch.tensor([[[1.0, 2.0]], [[3.0, 1.0]], [[100.0, 6.0]]])
    block = emberge.Block.of(tensors)
    (plain,) = merge_blocks([median.type()], [block])
    assert plain.tolist() == [[3.0, 2.0]]
    type_of_option = type(median.type().mean)
    (halfway,) = merge_blocks([median.type(mean=type_of_option(0.5))], [block])
    torch.testing.assert_close(halfway, (plain + tensors.mean(0)) / 2)
    check_strategy(median.type(mean=type_of_option(0.5)))


def test_the_readme_names_every_component_of_every_plugin() -> None:
    rows: dict[str, set[str]] = {}
    for line in README.partition("## What each plugin here adds")[2].splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 3:
            rows.setdefault(cells[0].strip("`"), set()).update(re.findall(r"`(\w+)`", cells[2]))
    added: dict[str, set[str]] = {}
    for one in load_plugins(block=()).components:
        if one.source.distribution == "emberge":
            added.setdefault(one.plugin, set()).add(one.name)
    assert rows == added
