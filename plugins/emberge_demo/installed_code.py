"""Documented functions and methods of installed packages: their docstrings, and their code without them."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from emberge.interpreter import locate_package
from emberge_data import parse_source, take_first_paragraph

STDLIB = "stdlib"
# Folders of tests, of copies of other projects, or of programs rather than a library.
SKIPPED_FOLDERS = frozenset(
    {
        *("test", "tests", "_tests", "testing", "idlelib", "turtledemo", "lib2to3", "ensurepip"),
        *("site-packages", "dist-packages", "__pycache__", "_vendor", "vendor", "vendored"),
        *("externals", "_bundled", "pydoc_data", "array_api_compat", "array_api_extra"),
        *("_distutils", "distutils", "benchmarks", "examples", "_examples", "doc", "docs"),
    }
)
SKIPPED_FILES = ("test_", "conftest", "_sysconfigdata", "setup.py", "this.py", "antigravity.py")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Definition:
    """One documented function or method: `module` is dotted, `name` qualified by its classes."""

    module: str
    name: str
    query: str
    document: str

    @property
    def id(self) -> str:
        """`module.name`, which a package may give twice (overloads, branches)."""
        return f"{self.module}.{self.name}"


def find_package_folder(package: str) -> Path | None:
    """Return the folder of a package or of the standard library; None if there is none."""
    if package == STDLIB:
        return Path(sysconfig.get_path("stdlib"))
    return locate_package(package)


@functools.cache
def _map_providers() -> Mapping[str, list[str]]:
    return importlib.metadata.packages_distributions()


def describe_missing_package(name: str) -> str:
    """Return the message about a package that is not installed under that name, with the remedy."""
    return f"package '{name}' is not installed (or is one file); install it, or leave it out"


def read_version(package: str) -> str:
    """Return the installed version of a package; for the standard library, the interpreter's version."""
    if package == STDLIB:
        return ".".join(str(part) for part in sys.version_info[:3])
    names = _map_providers().get(package, [])
    return importlib.metadata.version(names[0]) if names else "unknown"


def list_source_files(package: str, folder: Path) -> list[tuple[str, Path]]:
    """Return the dotted module name and the file of every Python file to read, sorted by name."""
    files = []
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).parts
        if SKIPPED_FOLDERS.intersection(parts[:-1]) or parts[-1].startswith(SKIPPED_FILES):
            continue
        module = ".".join(parts).removesuffix(".py").removesuffix("__init__").rstrip(".")
        prefix = "" if package == STDLIB else package
        name = ".".join(part for part in (prefix, module) if part)
        if name:
            files.append((name, path))
    return sorted(files)


def read_definitions(package: str, folder: Path) -> Iterator[Definition]:
    """Yield every documented function and method of the package, module by module, in order of lines.

    Files that this version of Python cannot parse are skipped.
    """
    for module, path in list_source_files(package, folder):
        yield from _read_file(module, path)


def _read_file(module: str, path: Path) -> Iterator[Definition]:
    parsed = parse_source(path)
    if parsed is None:
        return
    tree, text = parsed
    # Not splitlines: form feeds end no line for `ast`.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for name, node in _yield_functions(tree, ""):
        docstring = ast.get_docstring(node, clean=False)
        if docstring is None:
            continue
        yield Definition(
            module, name, take_first_paragraph(docstring), remove_docstring(node, lines)
        )


def _yield_functions(tree: ast.AST, prefix: str) -> Iterator[tuple[str, Function]]:
    """Yield functions of modules and classes, also under `if` and `try`, but not those inside functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield f"{prefix}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _yield_functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.stmt | ast.ExceptHandler):
            yield from _yield_functions(node, prefix)


def remove_docstring(node: Function, lines: list[str]) -> str:
    """Return the definition's text with decorators and comments, without docstring, at the left margin.

    The text is empty if the function's body has nothing but the docstring, `pass`, `...` or one `raise`, or
    if code is on the docstring's lines.
    """
    docstring, *body = node.body
    start, end = docstring.lineno - 1, docstring.end_lineno or docstring.lineno
    shares_line = bool(lines[start][: docstring.col_offset].strip())
    if not _has_body(body) or shares_line or body[0].lineno == end:
        return ""
    first_line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
    while not lines[end].strip():
        end += 1
    text_lines = [*lines[first_line:start], *lines[end : node.end_lineno or end]]
    return "\n".join(_remove_indentation(line, node.col_offset) for line in text_lines).strip()


def _remove_indentation(line: str, columns: int) -> str:
    """Return the line without its indentation; text inside of strings may begin further left."""
    return line[columns:].rstrip() if not line[:columns].strip() else line.rstrip()


def _has_body(statements: list[ast.stmt]) -> bool:
    return any(
        not isinstance(statement, ast.Pass | ast.Raise)
        and not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in statements
    )
