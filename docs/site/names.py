"""Pages of the reference on verbs, hooks and errors, from their own documentation."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
from collections.abc import Iterator, Mapping

from emberge import errors, hookspecs
from emberge.cli.arguments import parse
from emberge.cli.verbs import VERBS
from emberge.plugin_verbs import Verb
from emberge.plugins import Plugins
from emberge.wording import Markdown, format_markdown_table
from emberge_report import write_code_span
from python_names import python_page

from components import prose

__all__ = ["name_pages"]


def name_pages(plugins: Plugins) -> dict[str, str]:
    """Return the Markdown of each of these pages, by its path below `docs`."""
    return {
        "reference/verbs.md": "\n".join(_verbs(plugins.verbs)),
        "reference/hooks.md": "\n".join(_hooks()),
        "reference/errors.md": "\n".join(_errors()),
        "reference/python.md": python_page(),
    }


# ── verbs ───────────────────────────────────────────────────────────────────────────────────────


def _verbs(added: Mapping[str, Verb]) -> Iterator[str]:
    yield "# Verbs\n"
    yield "Each verb of the command line, as `emberge VERB --help` prints it.\n"
    summaries = {name: verb.summary for name, verb in {**VERBS, **added}.items()}
    rows = [
        [Markdown(f"[`emberge {verb}`](#{verb})"), Markdown(f"{summary[0].upper()}{summary[1:]}.")]
        for verb, summary in summaries.items()
    ]
    yield from format_markdown_table(["verb", "what it does"], rows)
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
            write_code_span(one.__name__),
            str(one.exit_code),
            Markdown(prose((inspect.getdoc(one) or "").partition("\n")[0])),
        ]
        for one in _classes()
    ]
    yield from format_markdown_table(["error", "exit code", "when"], rows)
    yield "\nExit code 0 is for work that is done. A plugin raises the same classes, from `emberge`.\n"
    yield "## Problem { #Problem }\n"
    yield prose(inspect.getdoc(errors.Problem) or "")
    yield "\n" + (
        "A misspelt name comes with the one that was meant: `did you mean 'learning_rate'?`. After an error "
        "of a step the run ends; the same command goes on from the last finished step once the cause is gone."
    )


def _classes() -> list[type[errors.EmbergeError]]:
    found = [getattr(errors, name) for name in sorted(vars(errors))]
    return [one for one in found if inspect.isclass(one) and issubclass(one, errors.EmbergeError)]
