"""Public names and all that a recipe can say: listed once, defined where the list says, documented, used."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, get_args

import emberge
import emberge.merging
import pytest
from emberge import ArtifactKind, load_plugins
from emberge.cli import verbs
from emberge.cli.verbs import VERBS
from emberge.options import describe_component
from emberge.options.component_pages import list_component_rows
from emberge.plugins import KINDS

from tests.house.project import FACES, PLUGIN_FACES, plugin_packages, sources
from tests.support.places import ROOT
from tests.support.sources import CORE, EXAMPLES, PLUGINS, TESTS

# About as many as a reader looks through.
MOST = dict.fromkeys(FACES, 30) | {
    "emberge": 98,
    # The dictionary of nouns, of which `emberge` has most.
    "emberge.contracts": 127,
    "emberge.numerics": 36,
}
PLUGINS_HERE = load_plugins(block=())
README = (ROOT / "README.md").read_text("utf-8")


def definitions(tree: ast.Module) -> dict[str, ast.stmt]:
    """Return the statement that defines each name at the top of a module."""
    found: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            if isinstance(target, ast.Name):
                found[target.id] = node
    return found


def wrong_of_a_name(name: str, defined: dict[str, ast.stmt]) -> Iterator[str]:
    """Yield what a face promises of a name and its module does not keep."""
    node = defined.get(name)
    if node is None:
        yield f"{name} is not defined where the face says"
    elif isinstance(node, ast.FunctionDef | ast.ClassDef):
        doc = ast.get_docstring(node) or ""
        first = doc.partition("\n")[0].rstrip()
        if len(doc.split()) < 3 or not (first.endswith((".", ":", "?")) or "\n" in doc):
            yield f"{name} is not documented: {doc!r}"


def test_every_public_name_is_defined_where_its_face_says_and_documented() -> None:
    modules = {source.module: definitions(source.tree) for source in sources(CORE, PLUGINS)}
    wrong = [
        f"{module.replace('.', '/')}.py: {what}"
        for face, names in (FACES | PLUGIN_FACES).items()
        for name, module in names.items()
        for what in wrong_of_a_name(name, modules.get(module, {}))
        if face in FACES or "defined" in what
    ]
    assert wrong == []


def test_every_face_loads_its_names_from_its_stub() -> None:
    faces = [
        source for source in sources(CORE, PLUGINS) if source.path.with_suffix(".pyi").exists()
    ]
    loads = "__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)"
    assert len(faces) > 30
    assert [source.module for source in faces if loads not in ast.unparse(source.tree)] == []


def test_a_name_without_a_definition_or_a_docstring_is_found() -> None:
    code = "x = 1\nclass A:\n    'A class of nothing.'\ndef f():\n    'No'\ndef g():\n    ...\n"
    found = [[*wrong_of_a_name(name, definitions(ast.parse(code)))] for name in "xAfgh"]
    assert [len(one) for one in found] == [0, 0, 1, 1, 1]


def test_faces_list_each_name_once_and_are_short_enough_to_read() -> None:
    for face, names in (FACES | PLUGIN_FACES).items():
        root = CORE.parent if face in FACES else PLUGINS
        place = root.joinpath(*face.split("."))
        tree = ast.parse((place / "__init__.pyi").read_text("utf-8"))
        listed = [a for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names]
        assert [a.name for a in listed] == [a.asname for a in listed], face
        assert len(names) == len(listed) <= MOST.get(face, 30), face
        assert sorted(importlib.import_module(face).__all__) == sorted(names), face
        beside = {path.stem for path in place.iterdir() if path.suffix in ("", ".py")}
        assert face not in FACES or not beside & names.keys(), f"{face} hides a module"


def test_a_plugin_has_its_hooks_beside_its_face() -> None:
    for package in plugin_packages():
        assert (package / "hooks.py").is_file(), package.name
        assert "hookimpl" not in (package / "__init__.py").read_text("utf-8"), package.name


def test_every_public_name_has_a_user() -> None:
    used = {
        (one.module, name)
        for source in sources(CORE, PLUGINS, EXAMPLES, TESTS)
        for one in source.imports
        for name in one.names
    }
    for text in (README, (PLUGINS / "README.md").read_text("utf-8")):
        for facade, names in re.findall(r"from (emberge(?:\.\w+)?) import ([\w, ]+)", text):
            used |= {(facade, name.strip()) for name in names.split(",")}
    # The kinds of component name their contracts.
    used |= {("emberge.contracts", name) for _, names in KINDS.values() for name in names}
    pairs = {(face, name) for face, names in FACES.items() for name in names}
    assert sorted(pairs - used) == []


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Slurp"):
        emberge.Slurp  # noqa: B018
    with pytest.raises(AttributeError, match="Slurp"):
        emberge.merging.Slurp  # noqa: B018


# What a recipe can say.


def wrong_of_a_component(row: dict[str, Any], page: str) -> Iterator[str]:
    """Yield what `emberge list` and `emberge show` do not say of a component."""
    words = row["summary"].split()
    if len(words) < 4 or not row["summary"].rstrip().endswith((".", ":")):
        yield f"says in no sentence what it does: {row['summary']!r}"
    if row["clash"]:
        yield f"has the name of another: {row['clash']}"
    if not words or words[0] not in page:
        yield "show lacks its summary"
    for option in row["options"]:
        if not option["doc"].strip():
            yield f"option {option['name']} is not documented"
        if option["name"] not in page:
            yield f"show lacks option {option['name']}"


def test_every_component_and_option_is_documented() -> None:
    rows = list_component_rows(PLUGINS_HERE)
    assert len(rows) == len(PLUGINS_HERE.components)
    assert [
        f"{row['full_name']}: {what}"
        for row in rows
        for what in wrong_of_a_component(row, describe_component(PLUGINS_HERE, row["full_name"]))
    ] == []


def test_a_component_of_few_words_is_found() -> None:
    option = {"name": "size", "doc": " "}
    row = {"summary": "Do it", "clash": "other", "options": [option]}
    assert len([*wrong_of_a_component(row, "it")]) == 5


def test_every_step_produces_a_kind_of_artifact_and_loads_modules_that_exist() -> None:
    wrong = []
    for one in PLUGINS_HERE.components:
        if one.kind == "step":
            step: Any = one.type
            # A property depends on the options.
            loads = step.loads if isinstance(step.loads, tuple) else ()
            modules = [name.partition(":") for name in loads]
            wrong += [one.full_name] * (step.produces not in get_args(ArtifactKind))
            wrong += [f"{one.full_name}: {m}" for m, _, _ in modules if find_spec(m) is None]
            wrong += [
                f"{one.full_name}: {m}:{name}"
                for m, _, name in modules
                if name and not callable(getattr(importlib.import_module(m), name, None))
            ]
    assert wrong == []


def test_the_readme_names_each_verb_in_its_words_and_each_is_one_call() -> None:
    rows = {}
    for line in README.splitlines():
        if line.startswith("| `emberge "):
            _, verb, says, _ = line.split("|")
            rows[verb.strip(" `").removeprefix("emberge ")] = says.strip()
    texts = {name: verb.summary for name, verb in {**VERBS, **PLUGINS_HERE.verbs}.items()}
    assert rows == {verb: f"{text[0].upper()}{text[1:]}." for verb, text in texts.items()}
    calls = {
        name
        for name, function in inspect.getmembers(verbs, inspect.isfunction)
        if function.__module__ == verbs.__name__ and not name.startswith("_")
    }
    assert {verb.run.partition(":")[2] for verb in VERBS.values()} <= calls
