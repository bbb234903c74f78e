"""The table of components that `emberge list` prints: by kind, one line per component."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from emberge.errors import PluginError, suggest
from emberge.plugins import KINDS, Plugins
from emberge.recipes.docs.describe import format_origin, list_component_rows, option_line, wrap_text

# The distribution whose components are listed without naming their origin.
_OWN_DISTRIBUTION = "emberge"
_NARROWEST = 40


def list_components(
    plugins: Plugins,
    words: Sequence[str] = (),
    *,
    kind: str | None = None,
    as_json: bool = False,
    long: bool = False,
    width: int | None = None,
) -> str:
    """Return the components by kind as a table, one line each, or, with `as_json`, as JSON.

    Only components that have every one of `words` in their name, kind or documentation are listed and, if
    `kind` is not None, only components of this kind. With `long`, their options are shown too. Lines are cut
    to `width` characters, unless it is None.

    Raises:
        PluginError: if the kind does not exist, or no component has the words.
    """
    if kind is not None and kind not in KINDS:
        hint = suggest(kind, KINDS) or f"; kinds: {', '.join(KINDS)}"
        raise PluginError(f"there is no kind '{kind}'{hint}")
    rows = [row for row in list_component_rows(plugins) if kind in (None, row["kind"])]
    if words:
        rows = _filter_by_words(rows, words, plugins)
    if as_json:
        return json.dumps(rows, indent=2, ensure_ascii=False)
    return "\n".join(_format_table(rows, long, width))


def _filter_by_words(
    rows: Sequence[dict[str, Any]], words: Sequence[str], plugins: Plugins
) -> list[dict[str, Any]]:
    """Return the rows that have every word.

    Raises:
        PluginError: if no row has them; suggests the name that may have been meant.
    """
    docs = {(c.kind, c.full_name): c.doc for c in plugins.components}
    rows_found = []
    for row in rows:
        key = (row["kind"], row["full_name"])
        text = "\n".join((*key, docs[key])).casefold()
        if all(word.casefold() in text for word in words):
            rows_found.append(row)
    if not rows_found:
        hint = suggest(words[0], [row["name"] for row in rows]) or "; `emberge list` names all"
        raise PluginError(
            f"no component has '{' '.join(words)}' in its name or documentation{hint}"
        )
    return rows_found


def _format_table(rows: Sequence[dict[str, Any]], long: bool, width: int | None) -> Iterator[str]:
    name_width = max((len(_format_name(row)) for row in rows), default=0)
    first = True
    for kind in KINDS:
        rows_of_kind = [row for row in rows if row["kind"] == kind]
        if not rows_of_kind:
            continue
        if not first:
            yield ""
        first = False
        yield _format_heading(kind)
        for row in rows_of_kind:
            yield from _format_block(row) if long else [_format_line(row, name_width, width)]


def _format_heading(kind: str) -> str:
    plural = {"loss": "losses", "merge strategy": "merge strategies"}
    return plural.get(kind, f"{kind}s").capitalize()


def _format_name(row: Mapping[str, Any]) -> str:
    """Return the name to write in a recipe, preceded by its plugin's if another plugin has the same name."""
    return str(row["full_name"] if row["clash"] else row["name"])


def _format_line(row: Mapping[str, Any], names: int, width: int | None) -> str:
    is_ours = row["distribution"] == _OWN_DISTRIBUTION
    distribution_mark = "" if is_ours or row["clash"] else f" ({row['plugin']})"
    start = f"  {_format_name(row):<{names}}  "
    summary = row["summary"]
    if width is not None:
        summary_width = max(width, _NARROWEST) - len(start) - len(distribution_mark)
        summary = textwrap.shorten(summary, max(summary_width, len(" …")), placeholder=" …")
    return f"{start}{summary}{distribution_mark}".rstrip()


def _format_block(row: Mapping[str, Any]) -> Iterator[str]:
    yield f"  {row['name']:<22} {format_origin(row)}"
    yield from wrap_text(row["summary"], 6)
    options = [option_line(option) for option in row["options"]]
    if options:
        yield from wrap_text("; ".join(options), 6)
    if row["clash"]:
        yield from wrap_text(f"! {row['clash']}", 6)
