"""Python files as documents: a section for every function, class and method."""

from __future__ import annotations

import ast
import inspect
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path

from emberge_data.documents.source_document import (
    SourceDocument,
    SourceSection,
    UnreadableDocumentError,
)

_NO_PYTHON = "no Python that can be parsed"
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def parse_source(path: Path) -> tuple[ast.Module, str] | None:
    """Return a file's syntax tree and its text; None if this Python cannot parse the file."""
    try:
        source = path.read_bytes()
        tree, text = _parse_python(source), source.decode("utf-8-sig")
    except (OSError, ValueError):
        return None
    return None if tree is None else (tree, text)


def _parse_python(source: bytes | str) -> ast.Module | None:
    """Return the syntax tree of a source; None if this Python cannot parse it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about other projects' code
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last: nested too deeply
        return None


def take_first_paragraph(docstring: str) -> str:
    """Return the text before the first empty line, on one line."""
    paragraph, _, _ = "\n".join(
        line.rstrip() for line in inspect.cleandoc(docstring).splitlines()
    ).partition("\n\n")
    return _drop_surrogates(" ".join(paragraph.split()))


def read_python(name: str, text: str, fallback_title: str) -> SourceDocument:
    """Return a Python file as a document, titled by its dotted module name.

    The first section is the module's docstring. A class's section ends before its first method.

    Raises:
        UnreadableDocumentError: if it is not Python 3.
    """
    tree = _parse_python(text)
    if tree is None:
        raise UnreadableDocumentError(_NO_PYTHON)
    lines = text.split("\n")  # not splitlines: form feeds end no line for `ast`
    try:
        sections = [section for section in _list_sections(tree, lines, ()) if section.text.strip()]
    except RecursionError:  # thousands of `elif` are nested as deeply
        raise UnreadableDocumentError(_NO_PYTHON) from None
    module = name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    docstring = ast.get_docstring(tree)
    if docstring:
        text = _drop_surrogates(docstring)
        sections.insert(0, SourceSection((), text, summary=take_first_paragraph(docstring)))
    return SourceDocument(name, module or fallback_title, tuple(sections))


def _list_sections(
    tree: ast.AST, lines: list[str], headings: tuple[str, ...]
) -> Iterator[SourceSection]:
    """Yield the definitions of a module or class, also those under `if` and `try`, in order."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, _Definition):
            inner = (*headings, node.name)
            docstring = ast.get_docstring(node, clean=False)
            summary = take_first_paragraph(docstring) if docstring else ""
            text = _read_source(node, lines)
            yield SourceSection(inner, text, summary)
            if isinstance(node, ast.ClassDef):
                yield from _list_sections(node, lines, inner)
        elif isinstance(node, ast.stmt | ast.ExceptHandler):
            yield from _list_sections(node, lines, headings)


def _read_source(node: _Definition, lines: list[str]) -> str:
    """Return a definition's lines at the left margin; those of a class end before its first method."""
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
    last = node.end_lineno or node.lineno
    if isinstance(node, ast.ClassDef):
        starts = [
            min([inner.lineno, *(decorator.lineno for decorator in inner.decorator_list)]) - 1
            for inner in node.body
            if isinstance(inner, _Definition)
        ]
        last = min([last, *starts])
    return inspect.cleandoc("\n" + textwrap.dedent("\n".join(lines[first:last]))).rstrip()


def _drop_surrogates(text: str) -> str:
    """Return a text without halves of surrogate pairs, which a docstring may have as escapes."""
    return text.encode(errors="replace").decode()
