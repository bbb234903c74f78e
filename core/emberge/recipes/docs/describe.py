"""The list of components and the page of each component, from fields and docstrings alone.

An option's documentation (`option_docs`) is a string literal right below the field, or the sentence of the
class's docstring that names the option in backticks.
"""

from __future__ import annotations

import inspect
import json
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Any

from emberge.errors import PluginError, suggest
from emberge.options import Option, article, document_options
from emberge.plugins import KINDS, Component, Plugins
from emberge.wording import count_noun

STAGES = ("merge transform", "merge strategy")
_FEW = 5  # options inside an option that every page of a component can list


# ── all components ──────────────────────────────────────────────────────────────────────────────


def list_component_rows(plugins: Plugins) -> list[dict[str, Any]]:
    """Return every component as plain data: kind, name, options, plugin, distribution, version, summary.

    `clash` has the name to write instead of a bare name that two plugins use.
    """
    order = {kind: index for index, kind in enumerate(KINDS)}
    ordered = sorted(plugins.components, key=lambda c: (order[c.kind], c.name, c.plugin))
    return [_build_component_row(component, plugins) for component in ordered]


def _build_component_row(component: Component, plugins: Plugins) -> dict[str, Any]:
    return {
        "kind": component.kind,
        "name": component.name,
        "full_name": component.full_name,
        "plugin": component.plugin,
        "distribution": component.distribution,
        "version": component.version,
        "summary": component.summary,
        "clash": _has_name_twice(component, plugins),
        "options": [
            _build_option_row(option, plugins) for option in _list_options(component, plugins)
        ],
    }


def _list_options(component: Component, plugins: Plugins) -> list[Option]:
    """Return a component's options; empty for a reader, which is chosen by its file's suffix."""
    return [] if component.kind == "reader" else document_options(component, plugins)


def _build_option_row(
    option: Option, plugins: Plugins, inside: tuple[type, ...] = ()
) -> dict[str, Any]:
    """Return an option as plain data; if it accepts a mapping, with the options of the mapping.

    `block` is then the mapping's name, and `shared` is True if the core has it for all plugins, such as the
    entries of data.
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
        nested = document_options(record, plugins)
        row["block"] = record.__name__
        row["shared"] = record.__module__.startswith("emberge.") and len(nested) > _FEW
        row["options"] = [
            _build_option_row(inner_option, plugins, (*inside, record)) for inner_option in nested
        ]
    return row


def _has_name_twice(component: Component, plugins: Plugins) -> str:
    kinds = STAGES if component.kind in STAGES else (component.kind,)
    try:
        plugins.find(component.name, *kinds)
    except PluginError as error:
        return str(error)
    return ""


def format_origin(row: Mapping[str, Any]) -> str:
    """Return the plugin and the distribution that a component comes from."""
    version = f" {row['version']}" if row["version"] else ""
    return f"{row['plugin']} ({row['distribution'] or 'no distribution'}{version})"


def option_line(option: Mapping[str, Any]) -> str:
    """Return an option in one line: name, type, default."""
    if option["required"]:
        return f"{option['name']}: {option['type']}, required"
    return f"{option['name']}: {option['type']} = {_format_default(option['default'])}"


def _format_default(default: Any) -> str:
    """Return a default as a recipe writes it."""
    if isinstance(default, str):
        return default or "''"
    if default is None:
        return "nothing"
    return json.dumps(default, ensure_ascii=False)


def wrap_text(text: str, indent: int, hanging: int = 0) -> list[str]:
    """Return the text as lines that fit the terminal, from 60 to 110 characters wide."""
    width = min(max(shutil.get_terminal_size().columns, 60), 110)
    indentation = " " * indent
    return textwrap.wrap(
        text,
        width,
        initial_indent=indentation,
        subsequent_indent=indentation + " " * hanging,
        break_on_hyphens=False,
    )


# ── one component ───────────────────────────────────────────────────────────────────────────────


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
        raise PluginError(f"there is no component '{name}'{hint}")
    pages = []
    for component in components:
        doc, example = _split_example(component.doc)
        row = _build_component_row(component, plugins)
        pages.append({**row, "doc": doc, "example": example, "suffixes": _list_suffixes(component)})
    return pages


def _split_example(doc: str) -> tuple[str, str]:
    """Return a docstring without its last `Example:` block, and the block as a recipe or command line.

    The block is one or more steps as they are written under `steps:`, or commands that begin with `emberge`.
    """
    prose, _, block = doc.partition("\n\nExample:\n")
    example = textwrap.dedent(block).strip()
    if example and not example.startswith("emberge "):
        example = "steps:\n" + textwrap.indent(example, "  ")
    return prose, example


def _list_suffixes(component: Component) -> list[str]:
    return list(component.type.suffixes) if component.kind == "reader" else []


def describe_component(plugins: Plugins, name: str) -> str:
    """Return the documentation, options and example of a component, or of a block of options, as text.

    A block that many components take, such as `DataEntry`, has a page of its own, to which theirs refer.

    Raises:
        PluginError: if there is neither a component nor a block of this name; has a suggestion.
    """
    if not any(name in (component.name, component.full_name) for component in plugins.components):
        block = _find_block(plugins, name)
        if block is not None:
            return "\n".join(_build_block_page(block))
    return "\n\n\n".join(
        "\n".join(_build_page(page)) for page in build_component_pages(plugins, name)
    )


def _build_page(page: dict[str, Any]) -> Iterator[str]:
    yield f"{page['name']}: {article(page['kind'])} of {format_origin(page)}"
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
    """Yield lines on options; `listed` maps each block whose options are on the page to the option there."""
    for option in options:
        yield from wrap_text(option_line(option), indent, hanging=4)
        yield from wrap_text(option["doc"], indent + 4)
        block = option.get("block", "")
        if option.get("shared"):
            yield from wrap_text(f"`emberge show {block}` lists the options inside.", indent + 4)
        elif block in listed:
            yield from wrap_text(f"The options inside are those of `{listed[block]}`.", indent + 4)
        else:
            listed |= {block: option["name"]} if block else {}
            yield from _format_options(option.get("options", []), indent + 4, listed)


# ── a block of options that many components take ────────────────────────────────────────────────


@dataclass(frozen=True)
class _Block:
    """A mapping of options that components take, as documentation shows it."""

    type: type
    options: list[dict[str, Any]]
    users: Mapping[str, Sequence[str]]
    """The options that take the block, by component."""


def _find_block(plugins: Plugins, name: str) -> _Block | None:
    """Find a block of options by its name, written like DataEntry or data-entry; None if there is none."""
    types: dict[str, type] = {}
    users: dict[str, list[str]] = {}
    for component in plugins.components:
        for option in _list_options(component, plugins):
            block = option.form.record
            if block is not None and _fold_name(block.__name__) == _fold_name(name):
                types[name] = block
                users.setdefault(component.name, []).append(option.name)
    if not types:
        return None
    inner = document_options(types[name], plugins)
    rows = [_build_option_row(option, plugins, (types[name],)) for option in inner]
    return _Block(types[name], rows, users)


def _fold_name(name: str) -> str:
    return name.casefold().replace("-", "").replace("_", "")


def _build_block_page(block: _Block) -> Iterator[str]:
    takers = count_noun(len(block.users), "component")
    yield f"{block.type.__name__}: a mapping of options, taken by {takers}"
    yield ""
    yield inspect.cleandoc(block.type.__doc__ or "")
    yield from ["", "Options"]
    yield from _format_options(block.options, 2, {})
    yield from ["", "Taken by"]
    for user, options in sorted(block.users.items()):
        yield f"  {user}: {', '.join(f'`{option}`' for option in options)}"
