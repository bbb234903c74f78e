"""Say what components there are and what each does, made of their fields and docstrings alone.

An option's documentation (`option_docs`) is a string literal right below the field, or the sentence of the
class's docstring that names the option in backticks.
"""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

import emberge
from emberge.errors import PluginError, suggest
from emberge.plugins import KINDS, Component, Plugins
from emberge.recipes.docs.example import example
from emberge.recipes.docs.option_docs import Documented, documented_options
from emberge.recipes.options import field_types as forms
from emberge.recipes.options.phrases import article
from emberge.wording import plural

__all__ = [
    "ShippedRecipe",
    "component_page",
    "component_rows",
    "describe_component",
    "list_components",
    "shipped_recipes",
]

_STAGES = ("merge transform", "merge strategy")


# ── all components ──────────────────────────────────────────────────────────────────────────────


def component_rows(plugins: Plugins) -> list[dict[str, Any]]:
    """Every component as plain data: kind, name, options, plugin, distribution, version, summary.

    `clash` says what to write instead of a bare name that two plugins give.
    """
    place = {kind: index for index, kind in enumerate(KINDS)}
    ordered = sorted(plugins.components, key=lambda c: (place[c.kind], c.name, c.plugin))
    return [_row(component, plugins) for component in ordered]


def _row(component: Component, plugins: Plugins) -> dict[str, Any]:
    return {
        "kind": component.kind,
        "name": component.name,
        "full_name": component.full_name,
        "plugin": component.plugin,
        "distribution": component.distribution,
        "version": component.version,
        "summary": component.summary,
        "clash": _clash(component, plugins),
        "options": [_option_row(option, plugins) for option in _options(component, plugins)],
    }


def _options(component: Component, plugins: Plugins) -> list[Documented]:
    """A reader is chosen by its file's ending and has no options in a recipe."""
    return [] if component.kind == "reader" else documented_options(component, plugins)


def _option_row(
    option: Documented, plugins: Plugins, inside: tuple[type, ...] = ()
) -> dict[str, Any]:
    """An option as plain data, with the options of the mapping that it takes, if it takes one."""
    row: dict[str, Any] = {
        "name": option.name,
        "type": option.type,
        "required": option.required,
        "doc": option.doc,
    }
    if option.default is not MISSING:
        row["default"] = option.default
    record = _record_in(option.form)
    if record is not None and record not in inside:
        nested = documented_options(record, plugins)
        row["options"] = [_option_row(one, plugins, (*inside, record)) for one in nested]
    return row


def _record_in(form: Any) -> type | None:
    """The nested dataclass of an option, be it one, several, or one of a choice."""
    if isinstance(form, forms.Record):
        return form.type
    inner = form.forms if isinstance(form, forms.Either) else [getattr(form, "item", None)]
    found = (_record_in(one) for one in inner if one is not None)
    return next((one for one in found if one is not None), None)


def _clash(component: Component, plugins: Plugins) -> str:
    kinds = _STAGES if component.kind in _STAGES else (component.kind,)
    try:
        plugins.find(component.name, *kinds)
    except PluginError as error:
        return str(error)
    return ""


def list_components(plugins: Plugins, as_json: bool = False) -> str:
    """The table of components by kind as text, or the rows as JSON; nothing when there are none."""
    rows = component_rows(plugins)
    if as_json:
        return json.dumps(rows, indent=2, ensure_ascii=False)
    lines: list[str] = []
    for kind in KINDS:
        of_kind = [row for row in rows if row["kind"] == kind]
        if of_kind:
            lines += ["", _heading(kind)]
            for row in of_kind:
                lines += _block(row)
    return "\n".join(lines[1:])


def _heading(kind: str) -> str:
    return plural(kind).capitalize()


def _block(row: dict[str, Any]) -> Iterator[str]:
    yield f"  {row['name']:<22} {_origin(row)}"
    yield from _wrapped(row["summary"], 6)
    options = [_short(option) for option in row["options"]]
    if options:
        yield from _wrapped("; ".join(options), 6)
    if row["clash"]:
        yield from _wrapped(f"! {row['clash']}", 6)


def _origin(row: dict[str, Any]) -> str:
    version = f" {row['version']}" if row["version"] else ""
    return f"{row['plugin']} ({row['distribution'] or 'no distribution'}{version})"


def _short(option: dict[str, Any]) -> str:
    if option["required"]:
        return f"{option['name']}: {option['type']}, required"
    return f"{option['name']}: {option['type']} = {_said(option['default'])}"


def _said(default: Any) -> str:
    """A default as a recipe writes it."""
    if isinstance(default, str):
        return default or "''"
    if default is None:
        return "nothing"
    return json.dumps(default, ensure_ascii=False)


def _wrapped(text: str, indent: int, hanging: int = 0) -> list[str]:
    width = min(max(shutil.get_terminal_size().columns, 60), 110)
    pad = " " * indent
    return textwrap.wrap(
        text,
        width,
        initial_indent=pad,
        subsequent_indent=pad + " " * hanging,
        break_on_hyphens=False,
    )


# ── one component ───────────────────────────────────────────────────────────────────────────────


def component_page(plugins: Plugins, name: str) -> list[dict[str, Any]]:
    """All that is known of the component `name` or `plugin:name`, one entry for each one of that name.

    An entry is a row of `component_rows` with `doc`, the whole documentation, and `example`, a recipe that
    the grammar takes, or a command line.

    Raises:
        PluginError: when there is none, with a suggestion.
    """
    found = [c for c in plugins.components if name in (c.name, c.full_name)]
    if not found:
        known = {word for c in plugins.components for word in (c.name, c.full_name)}
        hint = suggest(name, sorted(known)) or "; `emberge list` names all that are installed"
        raise PluginError(f"there is no component '{name}'{hint}")
    return [
        {
            **_row(c, plugins),
            "doc": c.doc,
            "example": _example(c, plugins),
            "suffixes": _suffixes(c),
        }
        for c in found
    ]


def _example(component: Component, plugins: Plugins) -> str:
    """A recipe that uses it, or the command line for what stands in no recipe."""
    if component.kind != "launcher":
        return example(component, plugins)
    defaults = [o for o in _options(component, plugins) if isinstance(o.default, int)]
    options = ", ".join(f"{option.name}: {_said(option.default)}" for option in defaults)
    command = "emberge run recipe.yaml --out out --launcher"
    return f"{command} {component.name}\n{command} '{{{component.name}: {{{options}}}}}'"


def _suffixes(component: Component) -> list[str]:
    return list(component.type.suffixes) if component.kind == "reader" else []


def describe_component(plugins: Plugins, name: str) -> str:
    """What a component does, its options and an example recipe, as text.

    Raises:
        PluginError: when there is none, with a suggestion.
    """
    return "\n\n\n".join("\n".join(_page(page)) for page in component_page(plugins, name))


def _page(page: dict[str, Any]) -> Iterator[str]:
    yield f"{page['name']}: {article(page['kind'])} of {_origin(page)}"
    yield ""
    yield page["doc"]
    if page["clash"]:
        yield from ["", page["clash"]]
    if page["suffixes"]:
        yield from ["", f"Reads files that end with {', '.join(page['suffixes'])}."]
    if page["options"]:
        yield from ["", "Options"]
    yield from _option_lines(page["options"], 2)
    if page["example"]:
        yield from ["", "Example", textwrap.indent(page["example"].rstrip(), "  ")]


def _option_lines(options: list[dict[str, Any]], indent: int) -> Iterator[str]:
    for option in options:
        yield from _wrapped(_short(option), indent, hanging=4)
        yield from _wrapped(option["doc"], indent + 4)
        yield from _option_lines(option.get("options", []), indent + 4)


# ── shipped recipes ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class ShippedRecipe:
    """A recipe that comes with emberge: where it lies and its opening comment."""

    name: str
    path: Path
    description: str


def shipped_recipes() -> dict[str, ShippedRecipe]:
    """The recipes that come with emberge, by name (`boom/demo`)."""
    package = Path(emberge.__file__).parent
    places = (package / "merge_recipes", package.parents[1] / "merge_recipes")
    folder = next((place for place in places if place.is_dir()), None)
    if folder is None:
        return {}
    # A catalogue of data, which recipes share, is no recipe.
    paths = sorted(path for path in folder.rglob("*.yaml") if path.name != "datasets.yaml")
    names = [path.relative_to(folder).with_suffix("").as_posix() for path in paths]
    return {
        name: ShippedRecipe(name, path, _opening(path.read_text(encoding="utf-8")))
        for name, path in zip(names, paths, strict=True)
    }


def _opening(text: str) -> str:
    """The comment that a file begins with."""
    lines: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").removeprefix(" "))
    return "\n".join(lines).strip()
