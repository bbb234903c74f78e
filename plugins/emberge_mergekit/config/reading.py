"""Reading of mergekit's YAML with the line of every key and value; problems are collected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from emberge import Problem, RecipeError, suggest
from emberge.yaml_nodes import find_alias_problem


@dataclass
class Faults:
    """Problems of a config, each at a line of the user's file."""

    path: Path | None
    problems: list[Problem] = field(default_factory=list)

    def add(self, line: int, message: str) -> None:
        """Add a problem at a line, counted from 1."""
        self.problems.append(Problem(message, f"{self.path or 'config'}:{line}"))

    def raise_all(self) -> None:
        """Raise all problems as one error, if there are any.

        Raises:
            RecipeError: if there are; the message has every fault, in the order of the file.
        """
        if self.problems:
            by_line = sorted(self.problems, key=lambda p: int(p.where.rpartition(":")[2]))
            raise RecipeError(dict.fromkeys(by_line))


@dataclass(frozen=True)
class ConfigValue:
    """Value of the config, its line, and its name in messages.

    `value` is plain data; in a mapping or list each entry is a `ConfigValue`.
    """

    value: Any
    line: int
    label: str

    @property
    def entries(self) -> Mapping[str, ConfigValue]:
        """The entries of a mapping."""
        assert isinstance(self.value, dict)
        return self.value

    @property
    def words(self) -> str:
        """A description of the value in a few words: "the text 'x'", "a list"."""
        if isinstance(self.value, dict):
            return "a mapping"
        if isinstance(self.value, list):
            return "a list"
        if self.value is None:
            return "nothing"
        return f"{'the text ' if isinstance(self.value, str) else ''}{self.value!r}"

    def refuse_unknown(
        self, keys: Iterable[str], faults: Faults, unsupported: Mapping[str, str] | None = None
    ) -> None:
        """Report every key that is not in `keys`; the report of an `unsupported` key has its reason."""
        allowed_names = list(keys)
        for name, entry in self.entries.items():
            if unsupported and name in unsupported:
                faults.add(entry.line, f"'{name}' is not supported; {unsupported[name]}")
            elif name not in allowed_names:
                hint = suggest(name, allowed_names) or f"; it has {', '.join(allowed_names)}"
                faults.add(entry.line, f"{self.label} has no '{name}'{hint}")


def documents(text: str, faults: Faults) -> list[ConfigValue]:
    """Return the non-empty documents of a YAML text; report a problem if it is not valid YAML."""
    try:
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
        for problem in filter(None, map(find_alias_problem, nodes)):
            faults.add(1, problem)
            return []
        return [_read_node(node, "the config", faults) for node in nodes if not _is_empty(node)]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = error.problem or error.context
        faults.add(mark.line + 1 if mark else 1, f"this is not YAML: {reason}")
    except yaml.YAMLError as error:
        faults.add(1, f"this is not YAML: {error}")
    except RecursionError:
        faults.add(1, "the config is nested too deeply")
    return []


def _is_empty(node: yaml.Node | None) -> bool:
    return node is None or node.tag == "tag:yaml.org,2002:null"


def _read_node(node: yaml.Node, label: str, faults: Faults) -> ConfigValue:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        return ConfigValue(dict(_read_entries(node, label, faults)), line, label)
    if isinstance(node, yaml.SequenceNode):
        items = [_read_node(item, f"an entry of {label}", faults) for item in node.value]
        return ConfigValue(items, line, label)
    try:
        value = yaml.constructor.SafeConstructor().construct_object(node)
    except yaml.YAMLError:
        faults.add(line, f"{label}: the tag {node.tag} means nothing here")
        value = None
    return ConfigValue(value, line, label)


def _read_entries(
    node: yaml.MappingNode, label: str, faults: Faults
) -> Iterator[tuple[str, ConfigValue]]:
    names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and names.count(key.value) > 1 and key.value != "<<":
            faults.add(key.start_mark.line + 1, f"{label}: '{key.value}' is written twice")
    yaml.constructor.SafeConstructor().flatten_mapping(node)  # `<<` means the entries it names
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            faults.add(key.start_mark.line + 1, f"{label}: a key must be a word")
            continue
        entry = _read_node(value, f"'{key.value}'", faults)
        yield key.value, ConfigValue(entry.value, key.start_mark.line + 1, entry.label)
