"""What `from emberge import …` gives: all of it importable, listed, sorted and documented."""

from __future__ import annotations

import ast
import inspect
import types

import emberge
import pytest

from tests.house.sources import CORE

FACADE = ast.parse((CORE / "__init__.py").read_text("utf-8"))


def imported_names(nodes: list[ast.stmt]) -> set[str]:
    found = [n for n in nodes if isinstance(n, ast.ImportFrom) and n.module != "__future__"]
    return {a.name for n in found if n.module and n.module.startswith("emberge.") for a in n.names}


def for_types() -> list[ast.stmt]:
    """What stands under `if TYPE_CHECKING`."""
    return [
        statement
        for node in FACADE.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
    ]


@pytest.mark.parametrize("name", emberge.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(emberge, name) is not None


@pytest.mark.parametrize("name", emberge.__all__)
def test_every_public_class_and_function_is_documented(name: str) -> None:
    thing = getattr(emberge, name)
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        assert not isinstance(thing, types.ModuleType)
        return
    doc = inspect.cleandoc(
        vars(thing).get("__doc__") or "" if inspect.isclass(thing) else thing.__doc__ or ""
    )
    assert not doc.startswith(f"{name}("), "a docstring of its own, not the dataclass's"
    assert doc.partition("\n")[0].rstrip().endswith((".", ":", "?")) or "\n" in doc, (
        f"{name}: {doc!r}"
    )
    assert len(doc.split()) >= 3


def test_the_list_is_sorted_and_says_each_name_once() -> None:
    def order(name: str) -> tuple[int, str]:  # CONSTANTS, Classes, functions
        return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)

    assert emberge.__all__ == sorted(set(emberge.__all__), key=order)


def test_the_list_is_all_that_the_facade_imports() -> None:
    eager, later = imported_names(FACADE.body), imported_names(for_types())
    assert later == set(emberge._LAZY)
    assert not eager & later
    assert eager | later | {"__version__"} == set(emberge.__all__)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Slurp'"):
        emberge.Slurp  # noqa: B018
