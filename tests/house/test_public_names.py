"""Public names, in two lists: all importable, documented, written once, and used outside their own module."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import types
from pathlib import Path

import emberge
import emberge.engine
import pytest

from tests.house.sources import CORE, EXAMPLES, PLUGINS, ROOT, TESTS, imports, python_files

STUBS = {"emberge": CORE / "__init__.pyi", "emberge.engine": CORE / "engine.pyi"}
# About as many as a reader looks through.
MOST = {"emberge": 160, "emberge.engine": 205}


def listed(stub: Path) -> dict[str, str]:
    """Each name of a stub with the module that it is imported from."""
    found: dict[str, str] = {}
    for node in ast.parse(stub.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                assert alias.asname == alias.name, f"{stub.name}:{node.lineno}"
                assert alias.name not in found, f"{stub.name}:{node.lineno}: twice"
                found[alias.name] = f"emberge.{node.module}"
    return found


NAMES = {facade: listed(stub) for facade, stub in STUBS.items()}
PAIRS = [(facade, name) for facade, names in NAMES.items() for name in sorted(names)]


@pytest.mark.parametrize("facade", STUBS)
def test_the_list_is_what_the_module_offers(facade: str) -> None:
    assert sorted(importlib.import_module(facade).__all__) == sorted(NAMES[facade])


@pytest.mark.parametrize("facade", STUBS)
def test_the_list_is_short_enough_to_read(facade: str) -> None:
    assert len(NAMES[facade]) <= MOST[facade]


def test_no_name_is_in_both_lists() -> None:
    assert not NAMES["emberge"].keys() & NAMES["emberge.engine"].keys()


@pytest.mark.parametrize(("facade", "name"), PAIRS)
def test_a_name_is_defined_where_the_list_says(facade: str, name: str) -> None:
    thing = getattr(importlib.import_module(facade), name)
    assert thing is not None
    if inspect.isclass(thing) or inspect.isfunction(thing):
        assert thing.__module__ == NAMES[facade][name]


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
    """Every (facade, name) that a plugin, an example, a test or a README takes."""
    found = {
        (one.module, name)
        for root, top in ((PLUGINS, PLUGINS), (EXAMPLES, EXAMPLES), (TESTS, ROOT))
        for file in python_files(root)
        for one in imports(file, top)
        if one.module in STUBS
        for name in one.names
    }
    for page in (ROOT / "README.md", PLUGINS / "README.md"):
        for facade, names in re.findall(
            r"from (emberge(?:\.engine)?) import ([\w, ]+)", page.read_text("utf-8")
        ):
            found |= {(facade, name.strip()) for name in names.split(",")}
    return found


def test_every_public_name_has_a_user() -> None:
    assert sorted(set(PAIRS) - users()) == []


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Slurp"):
        emberge.Slurp  # noqa: B018
    with pytest.raises(AttributeError, match="Slurp"):
        emberge.engine.Slurp  # noqa: B018
