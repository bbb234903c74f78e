"""Imports point one way, between rooms and inside them, and nothing imports in a circle.

Every import counts: at the top of a file, inside a function, and under `if TYPE_CHECKING`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import emberge
import pytest

from tests.support.sources import (
    CORE,
    EXAMPLES,
    FACES,
    PLUGINS,
    ROOT,
    imports,
    module_name,
    plugin_packages,
    python_files,
)

ARCHITECTURE = (ROOT / "docs/contributing/architecture.md").read_text("utf-8")


def table(first: str, second: str) -> dict[str, str]:
    """The rows of the table of the architecture that has these two columns."""
    _, rows = ARCHITECTURE.split(f"| {first} | {second} |\n|---|---|\n")
    lines = rows.partition("\n\n")[0].splitlines()
    return dict(line.strip("| ").split(" | ") for line in lines)


# These may be imported by every other room; of one another, each may import those before it.
NOUNS = re.findall(
    r"`(\w+)`", ARCHITECTURE.partition("may import those before it:\n")[2].partition(".\n")[0]
)
# What each other room of the core may import beyond them.
ROOMS = {
    name: "" if rooms == "nothing more" else rooms
    for name, rooms in table("room", "may import beyond them").items()
}
# Rooms of several floors: a module or folder imports those on its own line and on lines above it.
FLOORS = {name: tuple(order.split(", then ")) for name, order in table("room", "order").items()}
FACADES = {"emberge"}
FILES = {module_name(file, CORE.parent): file for file in python_files(CORE)}
PEERS = {"mteb": "emberge_mteb", "mergekit": "emberge_mergekit", "ray": "emberge_ray"}


def targets(file: Path, root: Path, known: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Modules among the known that a file imports; a name of a face counts as its module."""
    modules = set(known)
    for found in imports(file, root):
        face = FACES.get(found.module, {}) if found.module not in FACADES else {}
        named = {face.get(name, f"{found.module}.{name}") for name in found.names}
        if named & modules or found.module in modules:
            yield from ((name, found.line) for name in named & modules or {found.module})


def room(module: str, level: int = 1) -> str:
    """`merging` of `emberge.merging.request`, and at level 2 `request`."""
    parts = module.split(".")
    return parts[level] if len(parts) > level else ""


IMPORTS = {
    module: [found for found in targets(file, CORE.parent, FILES) if found[0] not in FACADES]
    for module, file in FILES.items()
    if module not in FACADES
}


def circle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """One circle of a graph, empty if it has none."""
    try:
        TopologicalSorter({node: set(others) for node, others in graph.items()}).prepare()
    except CycleError as error:
        return [str(node) for node in error.args[1]]
    return []


def grouped(modules: Mapping[str, Iterable[str]], level: int) -> dict[str, set[str]]:
    """A graph of modules as one of their rooms."""
    graph: dict[str, set[str]] = {}
    for module, others in modules.items():
        own = ".".join(module.split(".")[: level + 1])
        theirs = {".".join(other.split(".")[: level + 1]) for other in others}
        graph.setdefault(own, set()).update(theirs - {own})
    return graph


def modules_of(top: Path, root: Path) -> dict[str, list[str]]:
    """The imports between the modules of a package."""
    files = {module_name(file, root): file for file in python_files(top)}
    return {
        module: [target for target, _ in targets(file, root, files) if target != module]
        for module, file in files.items()
    }


def test_every_room_of_the_core_is_on_the_plan() -> None:
    assert {room(module) for module in FILES} - {""} == {*NOUNS, *ROOMS}


def allowed_in(name: str) -> set[str]:
    if name in NOUNS:
        return set(NOUNS[: NOUNS.index(name) + 1])
    return {name, *NOUNS, *ROOMS[name].split()}


@pytest.mark.parametrize("module", sorted(IMPORTS))
def test_rooms_of_the_core_import_what_the_plan_allows(module: str) -> None:
    wrong = [
        f"{FILES[module].relative_to(ROOT)}:{line} imports {target}"
        for target, line in IMPORTS[module]
        if room(target) not in allowed_in(room(module))
    ]
    assert not wrong


def test_the_core_imports_nothing_from_its_facades() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{found.line} takes {name} from {found.module}"
        for module, file in FILES.items()
        for found in imports(file, CORE.parent)
        if found.module in FACADES and module not in FACADES
        for name in found.names
        if f"{found.module}.{name}" not in FILES and name != "__version__"
    ]
    assert not wrong


@pytest.mark.parametrize("name", sorted(FLOORS))
def test_inside_a_room_imports_point_up_its_list(name: str) -> None:
    floor = {part: n for n, line in enumerate(FLOORS[name]) for part in line.split()}
    inside = [module for module in FILES if room(module) == name and room(module, 2)]
    assert {room(module, 2) for module in inside} == set(floor)
    wrong = [
        f"{FILES[module].relative_to(ROOT)}:{line} imports {target}"
        for module in inside
        for target, line in IMPORTS[module]
        if room(target) == name and floor[room(target, 2)] > floor[room(module, 2)]
    ]
    assert not wrong


@pytest.mark.parametrize("level", [1, 2, 99], ids=["rooms", "inner rooms", "modules"])
def test_the_core_has_no_circle(level: int) -> None:
    graph = {module: [target for target, _ in found] for module, found in IMPORTS.items()}
    if level == 2:  # a room's own modules stand beside its folders
        graph = {m: others for m, others in graph.items() if m.count(".") > 1}
    assert circle(grouped(graph, level)) == []


@pytest.mark.parametrize("package", plugin_packages(), ids=lambda package: package.name)
def test_plugins_have_no_circle(package: Path) -> None:
    assert circle(modules_of(package, PLUGINS)) == []


def test_a_circle_is_found_wherever_the_import_is(tmp_path: Path) -> None:
    package = tmp_path / "ring"
    package.mkdir()
    (package / "a.py").write_text("def f() -> None:\n    from ring.b import g\n")
    (package / "b.py").write_text("if TYPE_CHECKING:\n    from ring.a import f\n")
    assert set(circle(modules_of(package, tmp_path))) == {"ring.a", "ring.b"}


def test_a_file_name_occurs_once_in_the_core() -> None:
    names = [file.name for file in FILES.values() if not file.name.startswith("__")]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_core_never_imports_a_plugin() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{found.line} imports {found.module}"
        for file in python_files(CORE)
        for found in imports(file, CORE.parent)
        if found.module.split(".")[0].startswith("emberge_")
    ]
    assert not wrong


def is_face(module: str) -> bool:
    """Whether others may import from a module: a room of its own, not a part of one."""
    return module in FACES or (CORE / f"{room(module)}.py").is_file()


@pytest.mark.parametrize("name", sorted({room(module) for module in FILES} - {""}))
def test_a_room_imports_others_by_their_faces(name: str) -> None:
    wrong = [
        f"{FILES[module].relative_to(ROOT)}:{found.line} imports {found.module}"
        for module in FILES
        if room(module) == name
        for found in imports(FILES[module], CORE.parent)
        if found.module.startswith("emberge.") and room(found.module) not in (name, "cli")
        if not is_face(found.module)
    ]
    assert not wrong


def faults_of_a_plugin(file: Path, root: Path, own: str) -> Iterator[str]:
    """Imports that a plugin may not make: names that are not public, and other plugins."""
    public = {face: {*names} for face, names in FACES.items()}
    public["emberge"].add("testing")
    for found in imports(file, root):
        place = f"{file.relative_to(ROOT)}:{found.line}"
        top = found.module.split(".")[0]
        if top.startswith("emberge_") and top != own:
            yield f"{place} imports the plugin {top}"
        if found.module in public:
            for name in set(found.names) - public[found.module]:
                yield f"{place} takes {name}, which is no public name of {found.module}"
        elif found.module.startswith("emberge.") and not is_face(found.module):
            yield f"{place} imports {found.module}; take public names from emberge or a room's face"


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


@pytest.mark.parametrize(("library", "owner"), PEERS.items())
def test_one_plugin_alone_imports_the_peer(library: str, owner: str) -> None:
    importers = {
        file.relative_to(ROOT).parts[1]
        for root, top in ((CORE, CORE.parent), (PLUGINS, PLUGINS))
        for file in python_files(root)
        for found in imports(file, top)
        if found.module.split(".")[0] == library
    }
    assert importers <= {owner}


def test_the_core_knows_no_method() -> None:
    """No word of the core's code, beside documentation, is a component's name that only a plugin can know."""
    names = {c.name for c in emberge.load_plugins(block=()).components}
    # Words of everyday English, which an option or a message may use.
    everyday = {
        "train",
        "merge",
        "evaluate",
        "report",
        "select",
        "group",
        "keep",
        "local",
        "mixed",
        "linear",
        "drop",
        "split",
        "publish",
    }
    everyday.add("sentence_transformers")  # the library
    found = []
    for module, file in FILES.items():
        if room(module) in ("testing", "cli"):
            continue
        tree = ast.parse(file.read_text("utf-8"))
        docs = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        found += [
            f"{file.relative_to(ROOT)}:{node.lineno} knows '{node.value}'"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and id(node) not in docs
            and node.value in names - everyday
        ]
    assert not found
