"""Every hook is documented, listed in the README of plugins, and called."""

from __future__ import annotations

import inspect
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from emberge import (
    Artifact,
    Backbone,
    Evaluator,
    Launcher,
    Loss,
    MergeStrategy,
    MergeTransform,
    PluginError,
    Reader,
    Reporter,
    Sampler,
    Step,
    TokenLoss,
    hookimpl,
)
from emberge.architectures import Architecture
from emberge.plugin_verbs import Verb
from emberge.plugins import KINDS, Plugins

from tests.support.hooks import ASKING, EVENTS, REGISTERING, SPECS
from tests.support.sources import ROOT

ARGUMENTS: dict[str, Any] = {
    "reference": "acme://7",
    "revision": "v2",
    "files": "metadata",
    "text": "merge_method: linear",
    "path": Path("config.yaml"),
    "out": Path("out"),
    "recipe": Path("recipe.yaml"),
    "steps": ["soup"],
    "quiet": False,
    "step": "soup",
    "kind": "merge:merge",
    "done": 3,
    "total": 7,
    "unit": "tensors",
    "note": "",
    "folder": Path("out/soup-1"),
    "error": None,
    "plugins": None,
    "artifact": Artifact(kind="model"),
    "seconds": 1.5,
    "message": "two models are alike",
    "name": "loss",
    "value": 0.5,
    "at": 10,
    "details": {},
}


def component(contract: type) -> type:
    """A subclass that follows the contract and does nothing."""
    body = {"__doc__": "A component that does nothing.", "__annotations__": {}}
    return dataclass(frozen=True, kw_only=True)(type("Nothing", (contract,), body))


ARCHITECTURES = {"nothing_at_all": Architecture(config="no_module:C", model="no_module:M")}
VERBS = {
    "nothing": Verb(
        summary="do nothing", examples="", add_options=lambda _: None, run="no_module:f"
    )
}
FUNCTIONS = {"nothing": "no_module:f"}
ADDITIONS: dict[str, Any] = {
    "register_architectures": ARCHITECTURES,
    "register_verbs": VERBS,
    "register_functions": FUNCTIONS,
}
CONTRACTS = {
    "register_steps": Step,
    "register_samplers": Sampler,
    "register_losses": Loss,
    "register_backbones": Backbone,
    "register_merge_transforms": MergeTransform,
    "register_merge_strategies": MergeStrategy,
    "register_evaluators": Evaluator,
    "register_readers": Reader,
    "register_launchers": Launcher,
    "register_reporters": Reporter,
}


def listener() -> tuple[types.ModuleType, dict[str, dict[str, Any]]]:
    """A plugin that implements every hook with all its arguments, and what it was told."""
    told: dict[str, dict[str, Any]] = {}
    module = types.ModuleType("everything")
    for name, spec in SPECS.items():
        arguments = list(inspect.signature(spec).parameters)
        answer: Any = {"nothing": component(CONTRACTS[name])} if name in CONTRACTS else None
        answer = ADDITIONS.get(name, answer)
        answer = "an answer" if name in ASKING else answer
        scope: dict[str, Any] = {"told": told, "answer": answer}
        # Written out, because pluggy reads an implementation's arguments from its signature.
        exec(
            f"def {name}({', '.join(arguments)}):\n"
            f"    told['{name}'] = dict({', '.join(f'{a}={a}' for a in arguments)})\n"
            f"    return answer\n",
            scope,
        )
        setattr(module, name, hookimpl(scope[name]))
    return module, told


def arguments_of(name: str) -> dict[str, Any]:
    return {argument: ARGUMENTS[argument] for argument in inspect.signature(SPECS[name]).parameters}


def test_the_specification_is_a_table_of_contents() -> None:
    assert set(CONTRACTS) == {hook for hook, _ in KINDS.values()}
    assert {*CONTRACTS, *ADDITIONS} == REGISTERING
    assert {"locate_model", "read_recipe"} == ASKING
    assert {"run_started", "step_finished", "run_finished"} <= EVENTS


@pytest.mark.parametrize("name", sorted(SPECS))
def test_every_hook_is_documented(name: str) -> None:
    doc = inspect.getdoc(SPECS[name]) or ""
    assert doc.partition("\n")[0].endswith("."), "one full sentence first"
    assert len(doc.split()) >= 5


def test_a_plugin_that_implements_every_hook_hears_all_of_them() -> None:
    module, told = listener()
    plugins = Plugins()
    plugins.register(module, "everything", "acme", "1.0")
    assert set(told) == REGISTERING
    assert {c.full_name for c in plugins.components} == {"everything:nothing"}
    assert {c.kind for c in plugins.components} == set(KINDS)
    assert plugins.verbs == VERBS
    assert {name: one.place for name, one in plugins.functions.items()} == FUNCTIONS
    for name in ASKING:
        assert getattr(plugins.hook, name)(**arguments_of(name)) == "an answer"
    for name in EVENTS:
        plugins.announce(name, **arguments_of(name))
    assert told == {n: arguments_of(n) for n in SPECS}


def test_an_implementation_takes_only_the_arguments_it_wants() -> None:
    heard = []
    module = types.ModuleType("frugal")

    @hookimpl
    def step_finished(seconds: float) -> None:
        heard.append(seconds)

    module.step_finished = step_finished  # type: ignore[attr-defined]
    plugins = Plugins()
    plugins.register(module, "frugal")
    plugins.announce("step_finished", **arguments_of("step_finished"))
    assert heard == [1.5]


@pytest.mark.parametrize("name", sorted(SPECS))
def test_every_misspelt_hook_is_refused_by_name(name: str) -> None:
    module = types.ModuleType("sloppy")
    setattr(module, f"{name}s", hookimpl(types.FunctionType((lambda: None).__code__, {})))
    with pytest.raises(PluginError, match=rf"'sloppy'.*'{name}s'; did you mean '{name}'"):
        Plugins().register(module, "sloppy")


def test_a_token_loss_is_a_loss_to_the_hook() -> None:
    module = types.ModuleType("tokens")
    module.register_losses = hookimpl(lambda: {"mlm": component(TokenLoss)})  # type: ignore[attr-defined]
    plugins = Plugins()
    plugins.register(module, "tokens")
    assert plugins.find("tokens:mlm", "loss").name == "mlm"


def readme_table() -> dict[str, str]:
    """The table of hooks in the README of plugins: each hook as its row calls it, and what the row says."""
    rows: dict[str, str] = {}
    inside = False
    for line in (ROOT / "plugins" / "README.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells[0] == "hook":
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not set(cells[0]) <= set("-: "):
            rows[cells[0].strip("`")] = " ".join(cells[1:]).strip()
    return rows


def test_the_readme_lists_every_hook_with_its_arguments() -> None:
    rows = readme_table()
    calls = {f"{n}({', '.join(inspect.signature(spec).parameters)})" for n, spec in SPECS.items()}
    assert set(rows) == calls
    assert all(rows.values()), "each row says what the hook is for"
