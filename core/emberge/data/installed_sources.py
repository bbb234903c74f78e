"""Sources of installed packages, read without importing them."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import warnings
from pathlib import Path


def locate_package(name: str) -> Path | None:
    """Return the folder of an installed package without importing it; None if there is no such folder."""
    try:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def parse_source(path: Path) -> tuple[ast.Module, str] | None:
    """Return a file's syntax tree and its text; None if this Python cannot parse the file."""
    try:
        source = path.read_bytes()
        tree, text = parse_python(source), source.decode("utf-8-sig")
    except (OSError, ValueError):
        return None
    return None if tree is None else (tree, text)


def parse_python(source: bytes | str) -> ast.Module | None:
    """Return the syntax tree of a source; None if this Python cannot parse it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about other projects' code
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last: nested too deeply
        return None


def first_paragraph(docstring: str) -> str:
    """Return the text before the first empty line, on one line."""
    lines = inspect.cleandoc(docstring).splitlines()
    paragraph_lines: list[str] = []
    for line in lines:
        if not line.strip():
            break
        paragraph_lines.append(line)
    # A docstring may contain half of a surrogate pair, which cannot be encoded.
    return " ".join(" ".join(paragraph_lines).split()).encode(errors="replace").decode()
