"""Pages of the reference on components: one page a kind, from the same data as `emberge show`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from emberge.options.component_pages import (
    build_component_pages,
    format_option,
    list_component_rows,
)
from emberge.plugins import KINDS, Plugins
from emberge.wording import Markdown, format_markdown_table
from emberge_report import write_code_span

__all__ = ["PAPER", "anchor", "component_pages", "kind_path", "kind_title", "prose"]

PAPER = re.compile(r"(?<!\[)arXiv:(\d{4}\.\d{4,5})")
# Options inside an option that are as many are listed once a page.
_LONG = 5
_PLURALS = {"loss": "losses", "merge strategy": "merge strategies"}
_USED_IN = {
    "step": "A step is written as `id: {kind: options}` under `steps:` of a [recipe](recipe.md).",
    "sampler": "A training's `sampler` is a chain: links that choose rows, and last one that groups them.",
    "loss": "A training's `loss` is one, a list that is summed, or one for each task or dataset.",
    "backbone": "`backbone` is how a step makes an encoder of a model's folder.",
    "merge transform": "A transform is a link of a merge's `strategy` before the last.",
    "merge strategy": "A merge's `strategy` is one of these, or a list of links that ends with one.",
    "evaluator": "`evaluators` of the steps `evaluate` and `select`, and of a training's `evaluate`.",
    "reader": "A reader is chosen by the ending of a data file, and has no options.",
    "launcher": "`--launcher NAME`, or `--launcher '{NAME: {options}}'`, on the command line.",
}


def kind_title(kind: str) -> str:
    """Return the plural of a kind of component, as the title of its page."""
    return _PLURALS.get(kind, f"{kind}s").capitalize()


def kind_path(kind: str) -> str:
    """Return the path of a kind's page below `docs`."""
    return f"reference/{kind_title(kind).lower().replace(' ', '-')}.md"


def anchor(row: Mapping[str, Any]) -> str:
    """Return the anchor of a component on its kind's page."""
    return str(row["full_name"].replace(":", "-") if row["clash"] else row["name"])


def component_pages(plugins: Plugins) -> dict[str, str]:
    """Return the Markdown of every kind's page, by its path."""
    rows = list_component_rows(plugins)
    return {
        kind_path(kind): "\n".join(_page(plugins, kind, [r for r in rows if r["kind"] == kind]))
        for kind in KINDS
    }


def _page(plugins: Plugins, kind: str, rows: list[dict[str, Any]]) -> Iterator[str]:
    yield f"# {kind_title(kind)}\n"
    yield f"{_USED_IN[kind]} `emberge show NAME` prints the same in a terminal.\n"
    table = [
        [
            Markdown(f"[`{row['name']}`](#{anchor(row)})"),
            write_code_span(row["plugin"]),
            Markdown(prose(row["summary"]).replace("|", "\\|")),
        ]
        for row in rows
    ]
    yield from format_markdown_table(["name", "plugin", "summary"], table)
    shown = _Shown({})
    for row in rows:
        (full,) = [p for p in build_component_pages(plugins, row["full_name"]) if p["kind"] == kind]
        yield from _component(full, shown)


@dataclass
class _Shown:
    """The places of a page that list options inside an option, so that each long list is there once."""

    places: dict[str, str]

    def before(self, option: Mapping[str, Any], here: str) -> str:
        """Return a link to an earlier place with the same options; "" if there is none."""
        inner = option.get("options", [])
        return self.places.setdefault(json.dumps(inner), here) if len(inner) >= _LONG else here


def _component(page: Mapping[str, Any], shown: _Shown) -> Iterator[str]:
    yield f"\n## {page['name']} {{ #{anchor(page)} }}\n"
    yield f"`{page['full_name']}`\n"
    yield prose(page["doc"])
    if page["suffixes"]:
        yield f"\nReads files that end with {', '.join(f'`{s}`' for s in page['suffixes'])}."
    if page["example"]:
        language = "bash" if page["example"].startswith("emberge ") else "yaml"
        yield f"\n```{language}\n{page['example'].rstrip()}\n```"
    if page["options"]:
        yield "\n**Options**\n"
        yield from _options(page["options"], "", page, shown)


def _options(
    options: list[dict[str, Any]], indent: str, page: Mapping[str, Any], shown: _Shown
) -> Iterator[str]:
    for option in options:
        name, _, rest = format_option(option).partition(": ")
        form, _, default = rest.partition(" = ")
        rest = f", by default `{default}`" if default else ""
        yield f"{indent}-   `{name}`: {prose(form)}{rest}"
        if option["doc"]:
            yield f"\n{indent}    {prose(option['doc'])}"
        yield ""
        here = f"[`{option['name']}` of `{page['name']}`](#{anchor(page)})"
        place = shown.before(option, here)
        if place != here:
            yield f"{indent}    The options inside are those of {place}.\n"
        else:
            yield from _options(option.get("options", []), indent + "    ", page, shown)


# ── docstrings as Markdown ──────────────────────────────────────────────────────────────────────


def prose(text: str) -> str:
    """Return a docstring as Markdown: what is no code in backticks has no markup."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if part.startswith("`") else _plain(part) for part in parts)


def _plain(text: str) -> str:
    return re.sub(r"([*_<\[\]|])(?!\s)", r"\\\1", text)
