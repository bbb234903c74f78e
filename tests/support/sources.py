"""The project's own files, and what each imports, read without importing them."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core" / "emberge"
PLUGINS = ROOT / "plugins"
EXAMPLES = ROOT / "examples"
TESTS = ROOT / "tests"


@dataclass(frozen=True)
class Import:
    """One import: the module named, the names taken from it, and the line."""

    module: str
    names: tuple[str, ...]
    line: int


def python_files(*roots: Path) -> list[Path]:
    """All Python files under the roots, without caches."""
    return sorted(f for root in roots for f in root.rglob("*.py") if "__pycache__" not in f.parts)


def module_name(file: Path, root: Path) -> str:
    """`emberge.merging.streaming.stream` of `core/emberge/merging/stream.py` with root `core`."""
    parts = list(file.relative_to(root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """A tree and its statements, in order: no expressions, which are most of the nodes of `ast.walk`."""
    yield tree
    for block in ("body", "handlers", "cases", "orelse", "finalbody"):
        for node in getattr(tree, block, ()):
            yield from statements(node)


# By text: several tests ask for the imports of every file.
@functools.cache
def _import_statements(source: str) -> tuple[tuple[int, str, tuple[str, ...], int], ...]:
    """Of each import its level, module, names and line."""
    found: list[tuple[int, str, tuple[str, ...], int]] = []
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(0, alias.name, (), node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            found.append((node.level, node.module or "", names, node.lineno))
    return tuple(found)


def imports(file: Path, root: Path) -> Iterator[Import]:
    """Every import of a file: at the top, inside functions, and for types alone."""
    package = module_name(file, root).split(".")
    if file.name != "__init__.py":
        package = package[:-1]
    for level, module, names, line in _import_statements(file.read_text("utf-8")):
        above = package[: len(package) - level + 1] if level else []
        yield Import(".".join([*above, *([module] if module else [])]), names, line)


def plugin_packages() -> list[Path]:
    """The first-party plugins' packages."""
    return sorted(f.parent for f in PLUGINS.glob("emberge_*/__init__.py"))


def _listed(stub: Path, package: str) -> dict[str, str]:
    return {
        alias.name: f"{package}.{node.module}"
        for node in ast.parse(stub.read_text("utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def faces_below(root: Path) -> dict[str, dict[str, str]]:
    """The public names of each package below `root` that has a face, with the module that defines each."""
    return {
        package: _listed(stub, package)
        for stub in sorted(root.rglob("__init__.pyi"))
        for package in [module_name(stub.with_suffix(".py"), root)]
    }


FACES = faces_below(CORE.parent)
"""The public names of `emberge` and of each room that has a face, with the module that defines each."""
