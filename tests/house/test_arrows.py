"""Arrows point one way: cli -> recipes -> merging, training, data -> contracts; plugins see public names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import emberge
import pytest

from tests.house.sources import (
    CORE,
    EXAMPLES,
    PLUGINS,
    ROOT,
    imports,
    module_name,
    plugin_packages,
    python_files,
)

# Each room of the core, and the rooms it may look into.
NOUNS = {"contracts", "errors"}
LEAVES = NOUNS | {"devices", "durable", "seeds"}
RUNNERS = {"merging", "training", "data"}
ROOMS: dict[str, set[str]] = {
    "errors": set(),
    "contracts": {"errors"},
    "hookspecs": NOUNS,
    "admission": NOUNS | {"hookspecs"},
    "plugins": NOUNS | {"hookspecs", "admission"},
    "devices": NOUNS,
    "durable": set(),
    "seeds": NOUNS,
    "data": LEAVES,
    "merging": LEAVES,
    "training": LEAVES | {"data"},
    "recipes": LEAVES | RUNNERS | {"hookspecs", "plugins"},
    "testing": LEAVES | RUNNERS,
    "verbs": LEAVES | RUNNERS | {"plugins", "recipes"},
    "arguments": {"errors"},
    "cli": {"errors", "arguments", "verbs"},
    "__main__": {"cli"},
}
# A block reaches for its arithmetic when it is asked to count, because a contract imports no torch.
EXCEPTIONS = {
    ("emberge.contracts.block", "emberge.merging.buffers"),
    ("emberge.contracts.block", "emberge.merging.noise"),
}


def room(module: str) -> str:
    """`merging` of `emberge.merging.stream`; the facade itself is the empty room."""
    return module.split(".")[1] if "." in module else ""


def targets(file: Path) -> Iterator[tuple[str, int]]:
    """Modules of the core that a core file imports; `from emberge import errors` counts as that module."""
    for found in imports(file, CORE.parent):
        if found.module == "emberge":
            for name in found.names:
                known = (CORE / name).is_dir() or (CORE / f"{name}.py").is_file()
                yield (f"emberge.{name}" if known else f"emberge:{name}"), found.line
        elif found.module.startswith("emberge."):
            yield found.module, found.line


def test_every_room_of_the_core_is_on_the_plan() -> None:
    rooms = {room(module_name(file, CORE.parent)) for file in python_files(CORE)} - {""}
    assert rooms <= set(ROOMS), "a new room: say here what it may import"


@pytest.mark.parametrize(
    "file", python_files(CORE), ids=lambda file: module_name(file, CORE.parent)
)
def test_core_imports_point_one_way(file: Path) -> None:
    here = module_name(file, CORE.parent)
    if here == "emberge":
        return  # the facade gathers names from every room; nobody in the core takes them from it
    allowed = ROOMS[room(here)] | {room(here)}
    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports {target}"
        for target, line in targets(file)
        if target != "emberge:__version__"
        and (":" in target or room(target) not in allowed)
        and (here, target) not in EXCEPTIONS
    ]
    assert not wrong


def test_exceptions_are_still_needed() -> None:
    real = {
        (module_name(file, CORE.parent), target)
        for file in python_files(CORE)
        for target, _ in targets(file)
    }
    assert real >= EXCEPTIONS


def test_core_never_imports_a_plugin() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{found.line} imports {found.module}"
        for file in python_files(CORE)
        for found in imports(file, CORE.parent)
        if found.module.split(".")[0].startswith("emberge_")
    ]
    assert not wrong


def faults_of_a_plugin(file: Path, root: Path, own: str) -> Iterator[str]:
    """Imports that a plugin may not make: what is not public in emberge, and other plugins."""
    for found in imports(file, root):
        place = f"{file.relative_to(ROOT)}:{found.line}"
        top = found.module.split(".")[0]
        if top.startswith("emberge_") and top != own:
            yield f"{place} imports the plugin {top}"
        if found.module == "emberge":
            for name in set(found.names) - set(emberge.__all__) - {"testing"}:
                yield f"{place} takes {name}, which is no public name of emberge"
        elif top == "emberge" and found.module.split(".")[1] != "testing":
            yield f"{place} imports {found.module}; take public names from emberge"


@pytest.mark.parametrize("package", plugin_packages(), ids=lambda package: package.name)
def test_plugins_import_public_names_and_never_each_other(package: Path) -> None:
    faults = [
        fault
        for file in python_files(package)
        for fault in faults_of_a_plugin(file, PLUGINS, package.name)
    ]
    assert not faults


def test_examples_import_public_names_alone() -> None:
    faults = [
        fault
        for file in python_files(EXAMPLES)
        for fault in faults_of_a_plugin(file, EXAMPLES, "emberge_acme")
    ]
    assert not faults


@pytest.mark.parametrize(
    ("library", "owner"),
    [("mteb", "emberge_mteb"), ("mergekit", "emberge_mergekit"), ("ray", "emberge_ray")],
)
def test_one_plugin_alone_imports_the_peer(library: str, owner: str) -> None:
    importers = {
        file.relative_to(ROOT).parts[1]
        for root, top in ((CORE, CORE.parent), (PLUGINS, PLUGINS))
        for file in python_files(root)
        for found in imports(file, top)
        if found.module.split(".")[0] == library
    }
    assert importers <= {owner}
