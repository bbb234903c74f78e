"""Text of a recipe, each line with the line of the user's file that it comes from."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from emberge.contracts import TranslatedRecipe

from emberge_mergekit.recipe.equivalents import Link, LinkOption
from emberge_mergekit.recipe.parameters import Entry

# Words that need no quotes: they are neither numbers nor truth values and open nothing.
_PLAIN = re.compile(r"[A-Za-z_./][\w./@:+$-]*")
_TAKEN = {"true", "false", "null", "yes", "no", "on", "off"}


class Sheet:
    """Writer of a recipe's lines, with the source line of each."""

    def __init__(self) -> None:
        self._lines: list[tuple[str, int]] = []

    def add(self, depth: int, text: str, line: int = 0) -> None:
        """Add a line, indented by two spaces per level; `line=0` repeats the previous line's source line."""
        previous_source = self._lines[-1][1] if self._lines else 1
        self._lines.append(("  " * depth + text, line or previous_source))

    def comment(self, depth: int, text: str) -> None:
        """Add a remark for the reader, on a line of its own."""
        self.add(depth, f"# {' '.join(text.split())}")

    def strategy(self, depth: int, links: Sequence[Link], line: int) -> None:
        """Add `strategy:` and its links, one option per line."""
        if len(links) == 1 and not links[0].options:
            self.add(depth, f"strategy: {links[0].name}", line)
            return
        self.add(depth, "strategy:", line)
        for link in links:
            dash = "- " if len(links) > 1 else ""
            self.add(depth + 1, f"{dash}{link.name}:" if link.options else f"{dash}{link.name}")
            option_depth = depth + (3 if dash else 2)
            for name, option in link.options.items():
                self.add(option_depth, f"{name}: {flow(option.value)}", option.line)

    def recipe(self) -> TranslatedRecipe:
        """Return the recipe's text, and for each of its lines the source line."""
        text = "".join(f"{text}\n" for text, _ in self._lines)
        return TranslatedRecipe(text, tuple(line for _, line in self._lines))


def flow(value: Any) -> str:
    """Return a value as one line of YAML, with each `$` of a text doubled as recipes require.

    Settings are numbers, lists over depth, or lists of `{filter, value}`.
    """
    if isinstance(value, LinkOption):
        return flow(value.value)
    if isinstance(value, tuple) and value and all(isinstance(one, Entry) for one in value):
        return _format_setting(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_quote_word(str(k))}: {flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(flow(one) for one in value) + "]"
    if isinstance(value, str):
        return _quote_word(value.replace("$", "$$"))
    return json.dumps(value)


def reference(text: str) -> str:
    """Return a model reference quoted for YAML; `$step` keeps its single dollar."""
    return _quote_word(text)


def _format_setting(entries: Sequence[Entry]) -> str:
    if len(entries) == 1 and entries[0].all:
        return flow(entries[0].value)
    return flow(
        [{"value": e.value} if e.all else {"filter": e.filter, "value": e.value} for e in entries]
    )


def _quote_word(text: str) -> str:
    is_plain = _PLAIN.fullmatch(text) and text.lower() not in _TAKEN and ": " not in text
    return text if is_plain and not text.endswith(":") else json.dumps(text, ensure_ascii=False)
