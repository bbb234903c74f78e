"""Pages of the reference on verbs, hooks, errors and public Python names, from their own documentation."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from emberge import errors, hookspecs
from emberge.cli.arguments import VERBS, parse
from emberge.plugin_verbs import Verb
from emberge.wording import Markdown, code_span, table_lines

from components import prose

__all__ = ["name_pages"]

_CORE = Path(inspect.getfile(errors)).parent
_FOR_COMPONENTS = "For authors of components. Importing it loads no torch."


def name_pages(added: Mapping[str, Verb]) -> dict[str, str]:
    """Return the Markdown of each of these pages, by its path below `docs`; `added` are verbs of plugins."""
    return {
        "reference/verbs.md": "\n".join(_verbs(added)),
        "reference/hooks.md": "\n".join(_hooks()),
        "reference/errors.md": "\n".join(_errors()),
        "reference/python.md": "\n".join(_python()),
    }


# ── verbs ───────────────────────────────────────────────────────────────────────────────────────


def _verbs(added: Mapping[str, Verb]) -> Iterator[str]:
    yield "# Verbs\n"
    yield "Each verb of the command line, as `emberge VERB --help` prints it.\n"
    summaries = {verb: summary for verb, (summary, _) in VERBS.items()}
    summaries |= {verb: one.summary for verb, one in added.items()}
    rows = [
        [Markdown(f"[`emberge {verb}`](#{verb})"), Markdown(f"{summary[0].upper()}{summary[1:]}.")]
        for verb, summary in summaries.items()
    ]
    yield from table_lines(["verb", "what it does"], rows)
    for verb in summaries:
        yield f"\n## {verb} {{ #{verb} }}\n\n```text\n{_help(verb, added)}\n```"


def _help(verb: str, added: Mapping[str, Verb]) -> str:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "96"
    try:
        with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
            parse([verb, "--help"], added)
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return shown.getvalue().rstrip()


# ── hooks ───────────────────────────────────────────────────────────────────────────────────────


def _hooks() -> Iterator[str]:
    yield "# Hooks\n"
    yield (
        "A hook is a function in a plugin's module that is marked `@hookimpl`. It takes only the arguments "
        "that it wants, by name.\n"
    )
    for name, hook in vars(hookspecs).items():
        if not hasattr(hook, "emberge_spec"):
            continue
        yield f"## {name} {{ #{name} }}\n"
        signature = str(inspect.signature(hook)).replace("'", "")
        yield f"```python\n{name}{signature}\n```\n"
        yield prose(inspect.getdoc(hook) or "") + "\n"


# ── errors ──────────────────────────────────────────────────────────────────────────────────────


def _errors() -> Iterator[str]:
    yield "# Errors\n"
    yield (
        "An error names the problem, its place and the remedy, and is printed without a traceback; `--debug` "
        "shows one. A place is `file:line` of a recipe or data file, or the name of a tensor, data set or "
        "step. `emberge check` prints all problems of a recipe at once, before any work starts.\n"
    )
    rows = [
        [
            code_span(one.__name__),
            str(one.exit_code),
            Markdown(prose((inspect.getdoc(one) or "").partition("\n")[0])),
        ]
        for one in _classes()
    ]
    yield from table_lines(["error", "exit code", "when"], rows)
    yield "\nExit code 0 is for work that is done. A plugin raises the same classes, from `emberge`.\n"
    yield "## Problem { #Problem }\n"
    yield prose(inspect.getdoc(errors.Problem) or "")
    yield "\n" + (
        "A misspelt name comes with the one that was meant: `did you mean 'learning_rate'?`. After an error "
        "of a step the run ends; the same command goes on from the last finished step once the cause is gone."
    )


def _classes() -> list[type[errors.EmbergeError]]:
    found = [getattr(errors, name) for name in errors.__all__]
    return [one for one in found if inspect.isclass(one) and issubclass(one, errors.EmbergeError)]


# ── public names ────────────────────────────────────────────────────────────────────────────────


def _python() -> Iterator[str]:
    yield "# Python names\n"
    yield "A plugin or a script imports these and no others; the modules behind them may change.\n"
    yield from _face("emberge", "", _FOR_COMPONENTS)
    for stub in sorted(_CORE.glob("*/__init__.pyi")):
        if stub.parent.name not in ("contracts", "testing"):  # emberge has the names of contracts
            summary = ast.get_docstring(ast.parse(stub.with_suffix(".py").read_text("utf-8"))) or ""
            yield from _face(f"emberge.{stub.parent.name}", stub.parent.name, summary)
    laws = "The laws of components, and batches for them: see [Testing a plugin](../plugins/testing.md)."
    yield from _face("emberge.testing", "testing", laws)
    for name, module in _listed(_CORE / "testing" / "__init__.pyi").items():
        doc = _docstring(f"testing.{module}", name)
        if doc and name.startswith("check_"):
            yield f"### {name} {{ #{name} }}\n\n{prose(doc.partition('Raises:')[0])}"


def _face(package: str, room: str, summary: str) -> Iterator[str]:
    yield f"## {package}\n\n{summary}\n"
    rows = []
    for name, module in sorted(_listed(_CORE / room / "__init__.pyi").items()):
        place = f"{room}.{module}" if room else module
        rows.append([code_span(name), Markdown(_first_line(place, name).replace("\n", " "))])
    yield from table_lines(["name", "what it is"], rows)
    yield ""


def _listed(stub: Path) -> dict[str, str]:
    """Return each name of a stub with the module that it comes from."""
    return {
        alias.name: node.module or ""
        for node in ast.parse(stub.read_text("utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _nodes(module: str) -> Iterator[ast.AST]:
    """Yield what a module of the core is made of, without importing it."""
    place = _CORE.joinpath(*module.split("."))
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return ast.walk(ast.parse(file.read_text("utf-8"))) if file.is_file() else iter(())


def _docstring(module: str, name: str) -> str:
    """Return the docstring of a class or function, "" if there is none."""
    for node in _nodes(module):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return ast.get_docstring(node) or ""
    return ""


def _first_line(module: str, name: str) -> str:
    """Return the first sentence of a name's docstring, or a constant's value."""
    doc = _docstring(module, name)
    if doc:
        return prose(doc.partition("\n\n")[0])
    for node in _nodes(module):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return f"`{ast.unparse(node.value)}`".replace("|", "\\|")
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name and node.value:
            return f"`{ast.unparse(node.value)}`".replace("|", "\\|")
    return ""
