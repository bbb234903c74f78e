"""The project's Python files, each read and parsed once, and what each imports."""

from __future__ import annotations

import ast
import functools
import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.places import ROOT
from tests.support.sources import CORE, EXAMPLES, PLUGINS, TESTS, python_files


@dataclass(frozen=True)
class Import:
    """One import: the module named, the names taken from it, and the line."""

    module: str
    names: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class Source:
    """A Python file: its path below the project, and its text."""

    place: str
    text: str

    @property
    def path(self) -> Path:
        """The file."""
        return ROOT / self.place

    @property
    def module(self) -> str:
        """`emberge.merging.streaming.stream` of `core/emberge/merging/streaming/stream.py`."""
        parts = self.place.removesuffix(".py").split("/")
        parts = parts if parts[0] == "tests" else parts[1:]
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @functools.cached_property
    def tree(self) -> ast.Module:
        """The parsed text."""
        gc.disable()  # a tree is many objects, and none of them garbage
        try:
            return ast.parse(self.text)
        finally:
            gc.enable()

    @functools.cached_property
    def nodes(self) -> list[Any]:
        """Every node of the tree, parents first."""
        return nodes(self.tree)

    @functools.cached_property
    def calls(self) -> list[tuple[str, ast.Call]]:
        """Every call, with the function as it is written: `path.open` of `path.open("rb")`."""
        return [(dotted(node.func), node) for node in self.nodes if isinstance(node, ast.Call)]

    @functools.cached_property
    def imports(self) -> list[Import]:
        """Every import: at the top, inside functions, and for types alone."""
        package = self.module.split(".")
        if not self.place.endswith("/__init__.py"):
            package = package[:-1]
        found = []
        for node in statements(self.tree):
            if isinstance(node, ast.Import):
                found += [Import(alias.name, (), node.lineno) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                above = package[: len(package) - node.level + 1] if node.level else []
                module = ".".join([*above, *([node.module] if node.module else [])])
                found.append(Import(module, tuple(alias.name for alias in node.names), node.lineno))
        return found

    def docstrings(self) -> Iterator[tuple[int, str]]:
        """Yield each docstring with its line, those below fields among them."""
        for node in statements(self.tree):
            value = node.value if isinstance(node, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield node.lineno, value.value


def nodes(tree: ast.AST) -> list[Any]:
    """Return a tree's nodes, parents first, without the marks of reading and writing."""
    found = [tree]
    for node in found:
        for field in node._fields:
            value = getattr(node, field, None) if field != "ctx" else None
            if isinstance(value, list):
                found += [one for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST):
                found.append(value)
    return found


def statements(tree: ast.AST) -> Iterator[Any]:
    """Yield a tree and its statements, in order."""
    yield tree
    for block in ("body", "handlers", "cases", "orelse", "finalbody"):
        for node in getattr(tree, block, ()):
            yield from statements(node)


def dotted(node: ast.AST) -> str:
    """Return `a.b` of the expression `a.b`, and `?.b` where `b` is taken of something longer."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else "?"


@functools.cache
def _every_source() -> list[Source]:
    files = python_files(CORE, PLUGINS, EXAMPLES, TESTS)
    return [Source(file.relative_to(ROOT).as_posix(), file.read_text("utf-8")) for file in files]


def sources(*roots: Path) -> list[Source]:
    """Return the files below some folders; each is read once, and parsed once when its tree is asked."""
    tops = tuple(f"{root.relative_to(ROOT).as_posix()}/" for root in roots)
    return [source for source in _every_source() if source.place.startswith(tops)]


def forget_trees() -> None:
    """Let go of what was parsed, which is some 300 MB."""
    for source in _every_source():
        for name in ("tree", "nodes", "calls"):
            vars(source).pop(name, None)


Rule = Callable[[Source], Iterable[tuple[int, str]]]
"""Yields the line of each fault of a file, and what is wrong there."""


def findings(rule: Rule, files: Iterable[Source]) -> list[str]:
    """Return the faults of files as `file:line: what is wrong`."""
    return [f"{source.place}:{line}: {what}" for source in files for line, what in rule(source)]


def plugin_packages() -> list[Path]:
    """Return the first-party plugins' packages."""
    return sorted(f.parent for f in PLUGINS.glob("emberge_*/__init__.py"))


def _faces_below(root: Path) -> dict[str, dict[str, str]]:
    faces = {}
    for stub in sorted(root.rglob("__init__.pyi")):
        package = ".".join(stub.relative_to(root).parts[:-1])
        faces[package] = {
            alias.name: f"{package}.{node.module}"
            for node in ast.parse(stub.read_text("utf-8")).body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
    return faces


FACES = _faces_below(CORE.parent)
"""The public names of `emberge` and of each room that has a face, with the module that defines each."""

PLUGIN_FACES = _faces_below(PLUGINS)
"""The same of the plugins."""
