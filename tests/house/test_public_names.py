"""Public names, in the faces of rooms: importable, documented, listed once, and used by others."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import types
from pathlib import Path

import emberge
import emberge.merging
import pytest
from emberge import load_plugins

from tests.support.sources import (
    CORE,
    EXAMPLES,
    FACES,
    PLUGINS,
    ROOT,
    TESTS,
    imports,
    python_files,
)

# About as many as a reader looks through.
MOST = dict.fromkeys(FACES, 30) | {
    "emberge": 112,
    # The dictionary of nouns, of which `emberge` has most.
    "emberge.contracts": 128,
    **{"emberge.data": 44, "emberge.files": 36, "emberge.merging": 33, "emberge.model_folder": 56},
    "emberge.encoding": 31,
    "emberge.evaluating": 33,
    "emberge.numerics": 41,
    "emberge.recipes": 33,
    "emberge.tensor_files": 31,
    "emberge.training": 32,
}
PAIRS = [(face, name) for face, names in FACES.items() for name in sorted(names)]


@pytest.mark.parametrize("stub", sorted(CORE.rglob("__init__.pyi")), ids=lambda s: s.parent.name)
def test_a_face_lists_each_name_once_and_under_its_own_name(stub: Path) -> None:
    nodes = [n for n in ast.parse(stub.read_text("utf-8")).body if isinstance(n, ast.ImportFrom)]
    names = [alias for node in nodes for alias in node.names]
    assert [a.name for a in names] == [a.asname for a in names]
    assert len({a.name for a in names}) == len(names)


@pytest.mark.parametrize("face", FACES)
def test_the_list_is_what_the_module_offers(face: str) -> None:
    assert sorted(importlib.import_module(face).__all__) == sorted(FACES[face])


@pytest.mark.parametrize("face", FACES)
def test_the_list_is_short_enough_to_read(face: str) -> None:
    assert len(FACES[face]) <= MOST[face]


@pytest.mark.parametrize("face", FACES)
def test_no_module_hides_a_public_name_beside_it(face: str) -> None:
    place = CORE.parent.joinpath(*face.split("."))
    beside = {path.stem for path in place.iterdir() if path.suffix in ("", ".py")}
    assert not beside & FACES[face].keys()


@pytest.mark.parametrize(("facade", "name"), PAIRS)
def test_a_name_is_defined_where_the_list_says(facade: str, name: str) -> None:
    thing = getattr(importlib.import_module(facade), name)
    assert thing is not None
    if inspect.isclass(thing) or inspect.isfunction(thing):
        assert thing.__module__ == FACES[facade][name]


@pytest.mark.parametrize(("facade", "name"), PAIRS)
def test_every_public_class_and_function_is_documented(facade: str, name: str) -> None:
    thing = getattr(importlib.import_module(facade), name)
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        assert not isinstance(thing, types.ModuleType)
        return
    doc = inspect.cleandoc(
        vars(thing).get("__doc__") or "" if inspect.isclass(thing) else thing.__doc__ or ""
    )
    assert not doc.startswith(f"{name}("), "a docstring of its own, not the dataclass's"
    assert doc.partition("\n")[0].rstrip().endswith((".", ":", "?")) or "\n" in doc, doc
    assert len(doc.split()) >= 3


def users() -> set[tuple[str, str]]:
    """Every (face, name) that another room, a plugin, an example, a test or a README takes."""
    found = {
        (one.module, name)
        for root, top in (
            (CORE, CORE.parent),
            (PLUGINS, PLUGINS),
            (EXAMPLES, EXAMPLES),
            (TESTS, ROOT),
        )
        for file in python_files(root)
        for one in imports(file, top)
        if one.module in FACES
        for name in one.names
    }
    for page in (ROOT / "README.md", PLUGINS / "README.md"):
        for facade, names in re.findall(
            r"from (emberge(?:\.\w+)?) import ([\w, ]+)", page.read_text("utf-8")
        ):
            found |= {(facade, name.strip()) for name in names.split(",")}
    return found


def test_every_public_name_has_a_user() -> None:
    assert sorted(set(PAIRS) - users()) == []


def test_the_stub_declares_the_functions_of_our_plugins_and_hides_no_misspelt_name() -> None:
    body = ast.parse((CORE / "__init__.pyi").read_text("utf-8")).body
    declared = {ast.unparse(n.targets[0]) for n in body if isinstance(n, ast.Assign)}
    assert declared == load_plugins().functions.keys()
    assert "__getattr__" not in {n.name for n in body if isinstance(n, ast.FunctionDef)}


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Slurp"):
        emberge.Slurp  # noqa: B018
    with pytest.raises(AttributeError, match="Slurp"):
        emberge.merging.Slurp  # noqa: B018
