"""YAML nodes read as what a catalogue expects of them, with file and line for what is not so.

Words are text, whatever YAML would make of them (`language: no`), unless a number or a flag is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from emberge.data.file_summary import shown
from emberge.errors import DataError, suggest

__all__ = ["Nodes"]


class Nodes:
    """Reads the nodes of one file; `free` are keys that a set may have without being read."""

    free: frozenset[str] = frozenset()

    def __init__(self, path: Path) -> None:
        self.path = path

    def place(self, node: yaml.Node) -> str:
        return f"{shown(self.path)}:{node.start_mark.line + 1}"

    def error(self, node: yaml.Node, message: str) -> DataError:
        return DataError(f"{self.place(node)}: {message}")

    def mapping(self, node: yaml.Node) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        if not isinstance(node, yaml.MappingNode):
            raise self.error(node, "expected names with values (name: value)")
        found: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            name = self.text(key)
            if name in found:
                raise self.error(key, f"'{name}' is written twice; keep one")
            found[name] = (key, value)
        return found

    def items(self, pair: tuple[yaml.Node, yaml.Node] | None) -> Iterator[yaml.Node]:
        if pair is None or (isinstance(pair[1], yaml.ScalarNode) and not pair[1].value):
            return
        if not isinstance(pair[1], yaml.SequenceNode):
            raise self.error(pair[1], "expected a list of sets (- name: …)")
        yield from pair[1].value

    def text(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise self.error(node, "expected a text")
        return str(node.value)

    def flag(self, node: yaml.Node) -> bool:
        word = self.text(node)
        if word not in ("true", "false"):
            raise self.error(node, f"expected true or false, not '{word}'")
        return word == "true"

    def number(self, node: yaml.Node) -> float:
        try:
            return float(self.text(node))
        except ValueError:
            raise self.error(node, f"expected a number, not '{self.text(node)}'") from None

    def count(self, node: yaml.Node) -> int:
        word = self.text(node)
        if not word.isdecimal() or not int(word):
            raise self.error(node, f"expected a whole number above 0, not '{word}'")
        return int(word)

    def known(
        self, keys: Mapping[str, Any], names: set[str], node: yaml.Node, *, free: bool = True
    ) -> None:
        allowed = names | (self.free if free and "name" in names else frozenset())
        for name, (key, _) in keys.items():
            if name not in allowed and not name.startswith("x-"):
                hint = suggest(name, sorted(allowed)) or f"; known: {', '.join(sorted(names))}"
                raise self.error(key, f"there is no '{name}' here{hint}")

    def need(self, keys: Mapping[str, Any], name: str, node: yaml.Node) -> yaml.Node:
        if name not in keys:
            raise self.error(node, f"the set has no '{name}'; add it")
        found: yaml.Node = keys[name][1]
        return found

    def one_of(
        self, keys: Mapping[str, Any], names: tuple[str, ...], node: yaml.Node, needed: bool = True
    ) -> yaml.Node | None:
        found = [name for name in names if name in keys]
        if len(found) > 1:
            raise self.error(node, f"'{found[0]}' and '{found[1]}' say the same; keep one")
        if not found and needed:
            raise self.error(node, f"the set has no '{names[0]}'; say where it lies")
        return keys[found[0]][1] if found else None
