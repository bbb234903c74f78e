"""The page on public Python names, read from the code's own stubs, signatures, fields and docstrings."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from emberge import errors
from emberge.wording import Markdown, format_markdown_table
from emberge_report import write_code_span

from components import prose

__all__ = ["python_page"]

_CORE = Path(inspect.getfile(errors)).parent
_WIDTH = 96


def python_page() -> str:
    """Return the Markdown of the page: each name of `emberge` in full, the names of rooms in tables."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield "# Python names\n"
    yield "A plugin or a script imports these and no others; the modules behind them may change.\n"
    yield "## emberge\n"
    yield "For scripts, notebooks and authors of components. Importing it loads no torch.\n"
    names = sorted(_listed(_CORE / "__init__.pyi").items(), key=lambda entry: entry[0].casefold())
    for name, module in names:
        yield from _describe_name(name, module)
    for stub in sorted(_CORE.glob("*/__init__.pyi")):
        room = stub.parent.name
        if room not in ("contracts", "testing"):  # emberge has the names of contracts
            summary = ast.get_docstring(ast.parse(stub.with_suffix(".py").read_text("utf-8"))) or ""
            yield from _describe_room(room, summary)
    laws = "The laws of components, and batches for them: see [Testing a plugin](../plugins/testing.md)."
    yield from _describe_room("testing", laws)
    for name, module in _listed(_CORE / "testing" / "__init__.pyi").items():
        if name.startswith("check_"):
            yield from _describe_name(name, f"testing.{module}")


def _describe_room(room: str, summary: str) -> Iterator[str]:
    yield f"## emberge.{room}\n\n{summary}\n"
    rows = []
    for name, module in sorted(_listed(_CORE / room / "__init__.pyi").items()):
        rows.append(
            [write_code_span(name), _first_sentence(_find_definition(f"{room}.{module}", name))]
        )
    yield from format_markdown_table(["name", "what it is"], rows)
    yield ""


def _describe_name(name: str, module: str) -> Iterator[str]:
    """Yield the section of one name: its signature or value, its docstring, its fields and members."""
    node = _find_definition(module, name)
    yield f"### {name} {{ #{name} }}\n"
    if isinstance(node, ast.FunctionDef):
        yield from _signature_block(name, node)
    elif isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        yield f"```python\nclass {name}{f'({bases})' if bases else ''}\n```\n"
    elif node is not None:
        yield f"```python\n{ast.unparse(node)}\n```\n"
    yield _format_docstring(_docstring(node))
    if isinstance(node, ast.ClassDef):
        yield from _describe_members(node)


def _describe_members(node: ast.ClassDef) -> Iterator[str]:
    fields = list(_list_fields(node))
    if fields:
        yield from format_markdown_table(["field", "type", "default", "what it is"], fields)
        yield ""
    methods = [
        [write_code_span(_call_text(one)), _first_sentence(one)]
        for one in node.body
        if isinstance(one, ast.FunctionDef) and not one.name.startswith("_")
    ]
    if methods:
        yield from format_markdown_table(["member", "what it does"], methods)
        yield ""


def _list_fields(node: ast.ClassDef) -> Iterator[list[str]]:
    """Yield name, type, default and docstring of each public field, as cells."""
    for position, statement in enumerate(node.body):
        if not isinstance(statement, ast.AnnAssign) or ast.unparse(statement.target)[0] == "_":
            continue
        after = node.body[position + 1 : position + 2]
        doc = ""
        if after and isinstance(after[0], ast.Expr) and isinstance(after[0].value, ast.Constant):
            doc = inspect.cleandoc(str(after[0].value.value))
        default = "" if statement.value is None else ast.unparse(statement.value)
        yield [
            *(
                write_code_span(ast.unparse(statement.target)),
                write_code_span(ast.unparse(statement.annotation)),
            ),
            *(write_code_span(default), Markdown(prose(" ".join(doc.split())))),
        ]


def _call_text(node: ast.FunctionDef) -> str:
    """Return a method as it is called, and a property as its name and type."""
    decorators = {ast.unparse(one) for one in node.decorator_list}
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    if decorators & {"property", "cached_property"}:
        return node.name + returns.replace(" ->", ":")
    parameters = _list_parameters(node)
    own = parameters if "staticmethod" in decorators else parameters[1:]
    return f"{node.name}({', '.join(own)}){returns}"


def _signature_block(name: str, node: ast.stmt | None) -> Iterator[str]:
    assert isinstance(node, ast.FunctionDef)
    parameters = _list_parameters(node)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    line = f"{name}({', '.join(parameters)}){returns}"
    if len(line) > _WIDTH:
        line = f"{name}(\n" + "".join(f"    {one},\n" for one in parameters) + f"){returns}"
    yield f"```python\n{line}\n```\n"


def _list_parameters(node: ast.FunctionDef) -> list[str]:
    """Return the parameters as they are written, `plugins: Plugins | None = None`."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    defaults += arguments.defaults
    found = [_parameter_text(*one) for one in zip(positional, defaults, strict=True)]
    if arguments.vararg is not None:
        found.append(f"*{_parameter_text(arguments.vararg)}")
    elif arguments.kwonlyargs:
        found.append("*")
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    found += [_parameter_text(*one) for one in keywords]
    if arguments.kwarg is not None:
        found.append(f"**{_parameter_text(arguments.kwarg)}")
    return found


def _parameter_text(argument: ast.arg, default: ast.expr | None = None) -> str:
    kind = f": {ast.unparse(argument.annotation)}" if argument.annotation is not None else ""
    if default is None:
        return argument.arg + kind
    return f"{argument.arg}{kind} = {ast.unparse(default)}"


def _format_docstring(text: str) -> str:
    """Return a docstring as Markdown: what is raised as a list, an example as code."""
    body, _, raised = text.partition("\nRaises:\n")
    body, _, example = body.partition("\nExample:\n")
    parts = [prose(body)]
    if example:
        parts.append(f"```yaml\n{inspect.cleandoc(example)}\n```")
    if raised:
        entries = re.split(r"\n(?=\S)", inspect.cleandoc(raised))
        lines = (f"* {prose(' '.join(entry.split()))}" for entry in entries)
        parts.append("Raises:\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _listed(stub: Path) -> dict[str, str]:
    """Return each name of a stub with the module that it comes from."""
    return {
        alias.name: node.module or ""
        for node in ast.parse(stub.read_text("utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@functools.cache
def _parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


def _find_definition(module: str, name: str) -> ast.stmt | None:
    """Return the statement of a module of the core that defines a name, without importing the module."""
    place = _CORE.joinpath(*module.split("."))
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    for node in _parse(file).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
        targets: list[ast.expr] = node.targets if isinstance(node, ast.Assign) else []
        targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
        if any(ast.unparse(target) == name for target in targets):
            return node
    return None


def _docstring(node: ast.stmt | None) -> str:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return ast.get_docstring(node) or ""
    return ""


def _first_sentence(node: ast.stmt | None) -> Markdown:
    """Return the first sentence of a definition's docstring, or a constant's value, as a cell."""
    doc = _docstring(node)
    if doc:
        return Markdown(prose(" ".join(doc.partition("\n\n")[0].split())))
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        return write_code_span(ast.unparse(node.value))
    return Markdown()
