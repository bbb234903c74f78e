"""The table and the pages of components, from fields and docstrings alone.

An option's documentation (`option_docs`) is a string literal right below the field, or the sentence of the
class's docstring that names the option in backticks.
"""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING
from typing import Any

from emberge.errors import PluginError, suggest
from emberge.options.forms import Option, add_article
from emberge.options.option_docs import document_options
from emberge.plugins import KINDS, Component, Plugins
from emberge.wording import join_some, make_plural

FOR_DEMOS = "For demos and tests."
"""Sentence in the documentation of components that `emberge list` leaves out, unless a word finds them."""
STAGES = ("merge transform", "merge strategy")
# The distribution whose components are listed without naming their plugin.
_OWN_DISTRIBUTION = "emberge"
_NARROWEST_COLUMN = 40  # characters of a line of the table
# The step whose example shows a component of another kind.
_STEP_BY_KIND = {
    **dict.fromkeys(STAGES, "merge"),
    **dict.fromkeys(("loss", "sampler", "backbone"), "train"),
}


def sort_components(plugins: Plugins) -> list[Component]:
    """Return every component, sorted by kind, name and plugin."""
    order = {kind: index for index, kind in enumerate(KINDS)}
    return sorted(plugins.components, key=lambda c: (order[c.kind], c.name, c.plugin))


def list_component_rows(plugins: Plugins) -> list[dict[str, Any]]:
    """Return every component as plain data: kind, name, options, plugin, distribution, version, summary.

    `clash` has the name to write instead of a bare name that two plugins use.
    """
    return [_build_component_row(component, plugins) for component in sort_components(plugins)]


def _build_component_row(component: Component, plugins: Plugins) -> dict[str, Any]:
    return {
        "kind": component.kind,
        "name": component.name,
        "full_name": component.full_name,
        "plugin": component.plugin,
        "distribution": component.source.distribution,
        "version": component.source.version,
        "summary": component.summary,
        "clash": describe_clash(component, plugins),
        "options": [
            _build_option_row(option, plugins) for option in _list_options(component, plugins)
        ],
    }


def describe_clash(component: Component, plugins: Plugins) -> str:
    """Return what to write in place of a name that two plugins use; "" for other names."""
    kinds = STAGES if component.kind in STAGES else (component.kind,)
    try:
        plugins.find(component.name, *kinds)
    except PluginError as error:
        return str(error)
    return ""


def _list_options(component: Component, plugins: Plugins) -> list[Option]:
    """Return a component's options; empty for a reader, which is chosen by its file's suffix."""
    return [] if component.kind == "reader" else document_options(component, plugins)


def _build_option_row(
    option: Option, plugins: Plugins, inside: tuple[type, ...] = ()
) -> dict[str, Any]:
    """Return an option as plain data; if it accepts a mapping, with the options of the mapping.

    `block` is then the mapping's name.
    """
    row: dict[str, Any] = {
        "name": option.name,
        "type": option.form.words,
        "required": option.required,
        "doc": option.doc,
    }
    if option.default is not MISSING:
        row["default"] = option.default
    record = option.form.record
    if record is not None and record not in inside:
        row["block"] = record.__name__
        row["options"] = [
            _build_option_row(inner_option, plugins, (*inside, record))
            for inner_option in document_options(record, plugins)
        ]
    return row


def build_component_pages(plugins: Plugins, name: str) -> list[dict[str, Any]]:
    """Return the pages of the components called `name` or `plugin:name`, usually one.

    A page is a row of `list_component_rows` with `doc`, the whole documentation, and `example`, a recipe or a
    command line.

    Raises:
        PluginError: if there is no such component; has a suggestion.
    """
    components = [c for c in plugins.components if name in (c.name, c.full_name)]
    if not components:
        names = {word for c in plugins.components for word in (c.name, c.full_name)}
        hint = suggest(name, sorted(names)) or "; `emberge list` names all that are installed"
        word = re.compile(rf"\b{re.escape(name)}\b", re.IGNORECASE)
        if having := [c.name for c in plugins.components if word.search(c.doc)]:
            hint = f"; `emberge list {name}` finds {join_some(dict.fromkeys(having))}"
        raise PluginError(f"there is no component '{name}'{hint}")
    pages = []
    for component in components:
        doc, example = _split_example(component, plugins)
        suffixes = list(component.type.suffixes) if component.kind == "reader" else []
        row = _build_component_row(component, plugins)
        pages.append({**row, "doc": doc, "example": example, "suffixes": suffixes})
    return pages


def _split_example(component: Component, plugins: Plugins) -> tuple[str, str]:
    """Return a docstring without its last `Example:` block, and the block as a recipe or command line.

    The block is one or more steps as they are written under `steps:`, or commands that begin with `emberge`,
    or some options, one a line, of the step `merge` or `train` that uses the component.
    """
    prose, _, block = component.doc.partition("\n\nExample:\n")
    example = textwrap.dedent(block).strip()
    if not example or example.startswith("emberge "):
        return prose, example
    if component.kind in _STEP_BY_KIND and re.fullmatch(r"(\w+: .+\n)+", f"{example}\n"):
        try:
            example = _complete_step(example, plugins.find(_STEP_BY_KIND[component.kind], "step"))
        except PluginError:  # the step's plugin is blocked
            return prose, example
    return prose, "steps:\n" + textwrap.indent(example, "  ")


def _complete_step(example: str, step: Component) -> str:
    """Return the example of a step with options of another example; `models` come with their own base."""
    lines = textwrap.dedent(step.doc.partition("\n\nExample:\n")[2]).splitlines()
    stated = _read_options(example.splitlines())
    usual = _read_options(lines[2:])
    if "models" in stated:
        usual.pop("base", None)
    return "\n".join(
        [*lines[:2], *(f"    {name}: {text}" for name, text in {**usual, **stated}.items())]
    )


def _read_options(lines: Sequence[str]) -> dict[str, str]:
    """Return the options of lines `name: value` by name."""
    pairs = (line.strip().partition(": ") for line in lines)
    return {name: text for name, _, text in pairs}


def list_components(
    plugins: Plugins,
    words: Sequence[str] = (),
    *,
    kind: str | None = None,
    width: int | None = None,
) -> str:
    """Return the components by kind as a table, one line each; those `FOR_DEMOS` only if `words` find them.

    Only components that have every one of `words` in their name, kind or documentation are listed and, if
    `kind` is not None, only components of this kind. Lines are cut to `width` characters, unless it is None.

    Raises:
        PluginError: if the kind does not exist, or no component has the words.
    """
    if kind is not None and kind not in KINDS:
        hint = suggest(kind, KINDS) or f"; kinds: {', '.join(KINDS)}"
        raise PluginError(f"there is no kind '{kind}'{hint}")
    of_kind = [c for c in sort_components(plugins) if kind in (None, c.kind)]
    listed = [c for c in of_kind if _has_words(c, words) and (words or FOR_DEMOS not in c.doc)]
    if words and not listed:
        hint = suggest(words[0], [c.name for c in of_kind]) or "; `emberge list` names all"
        raise PluginError(
            f"no component has '{' '.join(words)}' in its name or documentation{hint}"
        )
    return "\n".join(_format_table(listed, plugins, width))


def _has_words(component: Component, words: Sequence[str]) -> bool:
    text = "\n".join((component.kind, component.full_name, component.doc)).casefold()
    return all(word.casefold() in text for word in words)


def _format_table(
    components: Sequence[Component], plugins: Plugins, width: int | None
) -> Iterator[str]:
    # A name that two plugins use is written with its plugin.
    names = [c.full_name if describe_clash(c, plugins) else c.name for c in components]
    name_width = max(map(len, names), default=0)
    last_kind = None
    for component, name in zip(components, names, strict=True):
        if component.kind != last_kind:
            yield from [""] if last_kind else []
            yield make_plural(component.kind).capitalize()
            last_kind = component.kind
        is_clear = component.source.distribution == _OWN_DISTRIBUTION or name != component.name
        plugin_mark = "" if is_clear else f" ({component.plugin})"
        start = f"  {name:<{name_width}}  "
        summary = component.summary
        if width is not None:
            summary_width = max(width, _NARROWEST_COLUMN) - len(start) - len(plugin_mark)
            summary = textwrap.shorten(summary, max(summary_width, 2), placeholder=" …")
        yield f"{start}{summary}{plugin_mark}".rstrip()


def describe_component(plugins: Plugins, name: str) -> str:
    """Return the documentation, options and example of a component as text.

    Raises:
        PluginError: if there is no component of this name; has a suggestion.
    """
    pages = build_component_pages(plugins, name)
    return "\n\n\n".join("\n".join(_format_page(page)) for page in pages)


def _format_page(page: dict[str, Any]) -> Iterator[str]:
    version = f" {page['version']}" if page["version"] else ""
    origin = f"{page['plugin']} ({page['distribution'] or 'no distribution'}{version})"
    yield f"{page['name']}: {add_article(page['kind'])} of {origin}"
    yield ""
    yield page["doc"]
    if page["clash"]:
        yield from ["", page["clash"]]
    if page["suffixes"]:
        yield from ["", f"Reads files that end with {', '.join(page['suffixes'])}."]
    if page["options"]:
        yield from ["", "Options"]
    yield from _format_options(page["options"], 2, {})
    if page["example"]:
        yield from ["", "Example", textwrap.indent(page["example"].rstrip(), "  ")]


def _format_options(
    options: list[dict[str, Any]], indent: int, listed: dict[str, str]
) -> Iterator[str]:
    """Yield lines on options.

    `listed` maps each block whose options are on the page to the option there; it grows while lines are made.
    """
    for option in options:
        yield from _wrap_text(format_option(option), indent, hanging=4)
        yield from _wrap_text(option["doc"], indent + 4)
        block = option.get("block", "")
        if block in listed:
            yield from _wrap_text(f"The options inside are those of `{listed[block]}`.", indent + 4)
        else:
            if block:
                listed[block] = option["name"]
            yield from _format_options(option.get("options", []), indent + 4, listed)


def format_option(option: Mapping[str, Any]) -> str:
    """Return an option in one line: name, type, default."""
    start = f"{option['name']}: {option['type']}"
    if option["required"]:
        return f"{start}, required"
    default = option["default"]
    if default is None:
        return f"{start} = nothing"
    text = default if isinstance(default, str) else json.dumps(default, ensure_ascii=False)
    return f"{start} = {text}" if text else f"{start} = ''"


def _wrap_text(text: str, indent: int, hanging: int = 0) -> list[str]:
    """Return the text as lines that fit the terminal, from 60 to 110 characters wide."""
    width = min(max(shutil.get_terminal_size().columns, 60), 110)
    return textwrap.wrap(
        text,
        width,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hanging),
        break_on_hyphens=False,
    )
