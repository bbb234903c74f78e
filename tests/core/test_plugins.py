"""Plugins are found, named, held to their contracts, blocked, and told what happens."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from emberge import (
    MergeStrategy,
    MergeTransform,
    PluginError,
    Plugins,
    Sampler,
    chain,
    hookimpl,
    load_plugins,
)
from emberge.contracts import Event, StepStarted
from emberge.plugins import KINDS


@dataclass(frozen=True, kw_only=True)
class Bags(Sampler):
    """Draw bags.

    More about them.
    """


@dataclass(frozen=True, kw_only=True)
class Halve(MergeTransform):
    """Halve every delta."""


@dataclass(frozen=True, kw_only=True)
class Middle(MergeStrategy):
    """Take the middle."""


def module(**hooks: Callable[..., Any]) -> SimpleNamespace:
    """A plugin with these hooks, marked."""
    return SimpleNamespace(**{name: hookimpl(hook) for name, hook in hooks.items()})


def adding(hook: str, **components: object) -> SimpleNamespace:
    """A plugin that adds these components by one hook."""

    def register() -> Mapping[str, object]:
        return components

    return module(**{hook: register})


def registered(plugin: object, name: str = "mine") -> Plugins:
    plugins = Plugins()
    plugins.register(plugin, name, "acme-tools", "1.2")
    return plugins


def test_a_component_knows_where_it_comes_from_and_is_found_by_its_names() -> None:
    plugins = registered(adding("register_samplers", bags=Bags))
    (found,) = plugins.components
    assert (found.kind, found.name, found.full_name) == ("sampler", "bags", "mine:bags")
    assert found.type is Bags
    assert found.doc == "Draw bags.\n\nMore about them."
    assert found.summary == "Draw bags."
    assert plugins.find("bags", "sampler") is plugins.find("mine:bags", "sampler")
    assert plugins.find_component(Bags).name == "bags"
    with pytest.raises(PluginError, match=r"^there is no sampler 'bgas'; did you mean 'bags'\?$"):
        plugins.find("bgas", "sampler")
    with pytest.raises(PluginError, match="Middle was added by no plugin"):
        plugins.find_component(Middle)


def test_a_plugin_object_has_its_modules_hash_and_that_of_a_cell_is_new_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read_content(bags: object) -> str:
        plugins = Plugins()
        plugins.register(adding("register_samplers", bags=bags), "cell")
        return plugins.components[0].source.content

    expected = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    assert read_content(Bags) == read_content(f"{__name__}:Bags") == expected
    monkeypatch.setattr(Bags, "__module__", "cell")
    assert read_content(Bags) != read_content(Bags)


def test_a_name_of_two_plugins_is_refused_where_it_is_used() -> None:
    plugins = registered(adding("register_samplers", bags=Bags), "boom")
    plugins.register(adding("register_samplers", bags=Bags), "acme")
    with pytest.raises(PluginError) as caught:
        plugins.find("bags", "sampler")
    assert str(caught.value) == (
        "sampler 'bags' comes from 'boom' and from 'acme'; write boom:bags or acme:bags"
    )
    assert plugins.find("acme:bags", "sampler").plugin == "acme"


def test_a_plugin_whose_hooks_do_not_fit_is_refused_at_registration() -> None:
    plugins = registered(adding("register_samplers", bags=Bags))
    with pytest.raises(PluginError, match=r"two plugins are named 'mine' \(the second from other"):
        plugins.register(adding("register_samplers", more=Bags), "mine", "other")
    with pytest.raises(PluginError) as caught:
        registered(adding("register_sampler", bags=Bags))
    said = "plugin 'mine' has an unknown hook 'register_sampler'; did you mean 'register_samplers'?"
    assert str(caught.value) == said

    def register_samplers() -> Mapping[str, type[Sampler]]:
        return {"bags": Bags}

    with pytest.raises(
        PluginError, match="register_samplers of plugin 'mine' is not marked; write @"
    ):
        registered(SimpleNamespace(register_samplers=register_samplers))

    def hear_event(event: Event, colour: str) -> None:
        pass

    with pytest.raises(PluginError, match=r"plugin 'mine' does not fit its hooks: .*colour"):
        registered(module(hear_event=hear_event))


@dataclass(kw_only=True)
class Melting:
    """Not frozen, and no sampler."""


class Loose(Sampler):
    """A subclass without the decorator."""


@dataclass(frozen=True, kw_only=True)
class Silent(Sampler):
    colour: str = "red"


@pytest.mark.parametrize(
    ("name", "component", "said"),
    [
        ("bags", Melting, "sampler 'bags' of plugin 'mine' must be a subclass of Sampler"),
        ("bags", Loose, "must be a @dataclass(frozen=True, kw_only=True)"),
        ("bags", Silent, "needs a docstring: `emberge show` is made of it"),
        ("my-bags", Bags, "a name is letters, digits and underscores"),
        ("bags", chain(Middle, doc="x"), "only a merge strategy may be a chain"),
    ],
)
def test_a_component_that_breaks_its_contract_is_refused(
    name: Any, component: object, said: str
) -> None:
    def register_samplers() -> Mapping[str, Any]:
        return {name: component}

    plugins = Plugins()
    with pytest.raises(PluginError) as caught:
        plugins.register(module(register_samplers=register_samplers), "mine")
    assert said in str(caught.value)
    assert plugins.components == []


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module with a sampler that is sound and one that is none."""
    name = f"toys_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(
        "from dataclasses import dataclass\nfrom emberge import Sampler\n"
        '@dataclass(frozen=True, kw_only=True)\nclass Bags(Sampler):\n    """Draw bags."""\n'
        "class Melting: pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


def test_a_component_by_its_place_is_imported_when_asked_and_known_by_its_type(toys: str) -> None:
    plugins = registered(adding("register_samplers", bags=f"{toys}:Bags"))
    found = plugins.find("bags", "sampler")
    assert toys not in sys.modules
    assert found.summary == "Draw bags."
    assert found.type is sys.modules[toys].Bags
    assert plugins.find_component(found.type) is found
    plugins = registered(adding("register_samplers", bags=f"{toys}:Bags"))
    type_ = importlib.import_module(toys).Bags
    assert plugins.find_component(type_).full_name == "mine:bags"
    with pytest.raises(PluginError, match="was added by no plugin"):
        plugins.find_component(Bags)


@pytest.mark.parametrize(
    ("inside", "place", "fix"),
    [
        ("Melting", "sampler 'bags' of plugin 'mine'", "must be a subclass of Sampler"),
        ("Gone", "plugin 'mine' of acme-tools 1.2", "EMBERGE_BLOCK=mine"),
    ],
)
def test_an_unsound_class_at_a_place_names_its_plugin(
    toys: str, inside: str, place: str, fix: str
) -> None:
    found = registered(adding("register_samplers", bags=f"{toys}:{inside}")).components[0]
    with pytest.raises(PluginError) as caught:
        _ = found.type
    assert place in str(caught.value)
    assert fix in str(caught.value)


def test_a_module_without_python_source_names_its_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "no_python.py").write_bytes(b"\0")
    bags = registered(adding("register_samplers", bags="no_python:Bags")).components[0]
    with pytest.raises(PluginError, match="plugin 'mine' of acme-tools"):
        _ = bags.doc


def test_a_hook_that_gives_something_else_or_fails_names_its_plugin() -> None:
    with pytest.raises(PluginError, match="must be a subclass of Loss or TokenLoss"):
        registered(adding("register_losses", bags=Bags))
    with pytest.raises(
        PluginError, match="register_samplers of plugin 'mine' must return a mapping"
    ):
        registered(module(register_samplers=lambda: [Bags]))

    def register_samplers() -> Mapping[str, type[Sampler]]:
        raise ModuleNotFoundError("No module named 'scipyy'")

    with pytest.raises(PluginError) as caught:
        registered(module(register_samplers=register_samplers))
    assert str(caught.value) == (
        "plugin 'mine' of acme-tools 1.2 cannot be imported: "
        "ModuleNotFoundError(\"No module named 'scipyy'\"); update or uninstall acme-tools, "
        "or leave it out with EMBERGE_BLOCK=mine"
    )


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install a distribution with one module and entry points into a folder of its own."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("EMBERGE_BLOCK", raising=False)

    def write(distribution: str, body: str, entries: str, version: str = "2.0") -> None:
        info = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        (info / "entry_points.txt").write_text(f"[emberge]\n{entries}\n")
        (tmp_path / f"{distribution.replace('-', '_')}.py").write_text(textwrap.dedent(body))
        monkeypatch.delitem(sys.modules, distribution.replace("-", "_"), raising=False)

    return write


PLUGIN = '''
from dataclasses import dataclass

from emberge import Sampler, hookimpl


@dataclass(frozen=True, kw_only=True)
class Found(Sampler):
    """A sampler that was found."""


@hookimpl
def register_samplers():
    return {"found": Found}
'''


def test_plugins_are_found_by_their_entry_points(install: Callable[..., None]) -> None:
    install("found-plugin", PLUGIN, "found = found_plugin")
    found = load_plugins().find("found:found", "sampler")
    assert (found.source.distribution, found.source.version) == ("found-plugin", "2.0")
    plugins = load_plugins(block=())
    assert {"merge", "boom", "mteb"} <= {component.plugin for component in plugins.components}
    assert {component.source.distribution for component in plugins.components} >= {"emberge"}
    assert {component.kind for component in plugins.components} <= set(KINDS)


def test_a_plugin_that_cannot_be_imported_is_named_with_its_distribution(
    install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("broken-plugin", "import no_such_module", "broken = broken_plugin")
    with pytest.raises(PluginError) as caught:
        load_plugins()
    assert str(caught.value) == (
        "plugin 'broken' of broken-plugin 2.0 cannot be imported: "
        "ModuleNotFoundError(\"No module named 'no_such_module'\"); "
        "update or uninstall broken-plugin, or leave it out with EMBERGE_BLOCK=broken"
    )
    monkeypatch.setenv("EMBERGE_BLOCK", "other, broken")
    plugins = load_plugins()
    assert plugins.blocked == ("other", "broken")
    assert "merge" in {component.plugin for component in plugins.components}


def test_a_blocked_plugin_is_not_even_imported_and_a_star_blocks_all(
    install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("quiet-plugin", "raise SystemExit(3)", "quiet = quiet_plugin")
    names = {component.plugin for component in load_plugins(block=["quiet", "boom"]).components}
    assert "merge" in names
    assert "boom" not in names
    assert "quiet_plugin" not in sys.modules
    monkeypatch.setenv("EMBERGE_BLOCK", "*")
    assert load_plugins().components == []


def test_a_bare_file_is_a_plugin_and_stands_in_for_no_module(tmp_path: Path) -> None:
    (tmp_path / "trial.py").write_text("from __future__ import annotations\n" + PLUGIN)
    plugins = load_plugins([tmp_path / "trial.py"], block=["*"])
    (found,) = plugins.components
    assert (found.full_name, found.source.distribution) == ("trial:found", "file trial.py")
    (tmp_path / "json.py").write_text(PLUGIN)
    assert load_plugins([tmp_path / "json.py"], block=["*"]).components
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("gone.py", None, "gone.py: there is no such plugin file"),
        ("fails.py", "raise KeyError('x')", "fails.py: the plugin cannot be imported: KeyError"),
        ("notes.txt", "text", "notes.txt: a plugin is a Python file, and its name ends with .py"),
        ("typo.py", "x = 1\ndef f(:\n", "typo.py:2: invalid syntax"),
        ("leaves.py", "import sys\nsys.exit(0)\n", "leaves.py"),
    ],
)
def test_a_file_that_is_no_plugin_is_refused(
    tmp_path: Path, name: str, body: str | None, said: str
) -> None:
    if body is not None:
        (tmp_path / name).write_text(body)
    with pytest.raises(PluginError) as caught:
        load_plugins([tmp_path / name], block=["*"])
    assert said in str(caught.value)


def started(step: str) -> Event:
    return StepStarted(Path("out"), step, "merge:merge", "0123")


@pytest.mark.parametrize("error", [RuntimeError("no disk"), SystemExit("no disk")])
def test_a_listener_that_fails_is_warned_about_once_and_dropped(error: BaseException) -> None:
    heard: list[tuple[str, Event]] = []

    def hear_event(event: Event) -> None:
        heard.append(("mine", event))
        raise error

    plugins = registered(module(hear_event=hear_event))
    plugins.register(module(hear_event=lambda event: heard.append(("other", event))), "other")
    with pytest.warns(RuntimeWarning, match="plugin 'mine' failed at StepStarted .*no disk"):
        plugins.announce(started("a"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plugins.announce(started("b"))
    # The last that came is the first that hears.
    assert heard == [("other", started("a")), ("mine", started("a")), ("other", started("b"))]
