"""Concrete steps from a step with `foreach`: one for each combination, with values in place of `$name`."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from emberge.errors import Problem, suggest
from emberge.yaml_nodes import Fields, Items, Node, Scalar, StepUse, describe_node, to_plain

NAME = r"[A-Za-z0-9_][A-Za-z0-9_-]*"
_STEP_USE = re.compile(rf"\$({NAME})(\.[\w.,=-]+?)??(\.checkpoints)?(\+.+)?")
_VARIABLE_USE = re.compile(rf"\$(\$|{NAME})")
_LONGEST_SLUG = 40
_MOST_COMBINATIONS = 2000


@dataclass(frozen=True)
class Combination:
    """One combination of a `foreach`: its variables as nodes, and the suffix that the step's id gets."""

    nodes: Mapping[str, Node] = field(default_factory=dict)
    suffix: str = ""


def read_foreach(node: Node, problems: list[Problem]) -> list[Combination]:
    """Return the combinations of a `foreach`: a mapping of lists is their product, a list is its rows."""
    if isinstance(node, Fields) and node.entries:
        rows = _multiply_lists(node, problems)
    elif isinstance(node, Items) and node.items:
        rows = _read_rows(node, problems)
    else:
        message = "foreach takes `{name: [values]}` or a list of `{name: value}`"
        problems.append(Problem(f"{message}, not {describe_node(node)}", node.where))
        return []
    return add_ids(rows)


def _multiply_lists(node: Fields, problems: list[Problem]) -> list[dict[str, Node]]:
    before = len(problems)
    columns: list[tuple[Node, ...]] = []
    for name, values in node.entries.items():
        message = ""
        if not re.fullmatch(NAME, name):
            message = f"foreach: '{name}' is no name for a variable"
        elif isinstance(values, Items) and values.items:
            columns.append(values.items)
        else:
            message = f"foreach: '{name}' needs a list of values, not {describe_node(values)}"
        problems += [Problem(message, node.locate(name))] if message else []
    count = math.prod(map(len, columns))
    if count > _MOST_COMBINATIONS:
        message = f"foreach: {count:,} combinations are more than {_MOST_COMBINATIONS:,}; leave values out"
        problems.append(Problem(message, node.where))
    if len(problems) > before:
        return []
    return [dict(zip(node.entries, row, strict=True)) for row in itertools.product(*columns)]


def _read_rows(node: Items, problems: list[Problem]) -> list[dict[str, Node]]:
    rows: list[dict[str, Node]] = []
    for item in node.items:
        if not isinstance(item, Fields) or not item.entries:
            message = f"foreach: a row is `{{name: value}}`, not {describe_node(item)}"
            problems.append(Problem(message, item.where))
        elif rows and item.entries.keys() != rows[0].keys():
            message = f"foreach: this row has {', '.join(item.entries)}, the first has"
            problems.append(Problem(f"{message} {', '.join(rows[0])}", item.where))
        else:
            rows.append(dict(item.entries))
    return rows


def add_ids(rows: Sequence[Mapping[str, Node]]) -> list[Combination]:
    """Return the rows with suffixes such as `.ratio=0.2`; numbers if those would be equal or too long."""
    columns = {
        name: _build_slugs([row[name] for row in rows]) for name in (rows[0] if rows else ())
    }
    suffixes = [
        "." + ",".join(f"{name}={slugs[index]}" for name, slugs in columns.items())
        for index in range(len(rows))
    ]
    are_different = len({suffix.casefold() for suffix in suffixes}) == len(suffixes)
    if not are_different or max(map(len, suffixes), default=0) > 3 * _LONGEST_SLUG:
        suffixes = [f".{index}" for index in range(len(rows))]
    return [Combination(row, suffix) for row, suffix in zip(rows, suffixes, strict=True)]


def _build_slugs(values: Sequence[Node]) -> list[str]:
    """Return for each value a text that every file system accepts; equal texts are replaced by numbers.

    A mapping with one key, such as a strategy with options, has its key, unless a plain value has it too.
    """
    node_by_key = {repr(to_plain(node)): node for node in values}
    slugs = {key: _build_slug(node) for key, node in node_by_key.items()}
    folded = [slug.casefold() for slug in slugs.values()]
    plain = [f for f, n in zip(folded, node_by_key.values(), strict=True) if isinstance(n, Scalar)]
    for index, (key, slug) in enumerate(slugs.items()):
        rivals = plain if isinstance(node_by_key[key], Scalar) else folded
        if not slug or len(slug) > _LONGEST_SLUG or rivals.count(slug.casefold()) > 1:
            slugs[key] = f"{index}"
    return [slugs[repr(to_plain(node))] for node in values]


def _build_slug(node: Node) -> str:
    if isinstance(node, Fields) and len(node.entries) == 1:
        text = next(iter(node.entries))
    elif isinstance(node, Items | Fields):
        return ""
    else:
        text = node.text
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", text.replace("+", "")).strip("-.")
    if isinstance(node, Scalar) and isinstance(node.value, int | float) and node.value < 0:
        slug = f"-{slug}"
    return "" if slug.endswith("checkpoints") else slug


@dataclass
class Substitution:
    """The substitution of one row's variables, which also marks references to steps."""

    variables: Mapping[str, Node]
    steps: Sequence[str]
    problems: list[Problem]
    used: set[str] = field(default_factory=set)

    def __call__(self, node: Node) -> Node:
        """Return the node with every `$name` resolved; unknown names become problems."""
        if isinstance(node, Items):
            return Items(tuple(self(item) for item in node.items), node.where)
        if isinstance(node, Fields):
            return self._fill_fields(node)
        if isinstance(node, Scalar) and isinstance(node.value, str) and "$" in node.value:
            return self._fill_scalar(node, node.value)
        return node

    def _fill_fields(self, node: Fields) -> Fields:
        entries: dict[str, Node] = {}
        lines: dict[str, str] = {}
        for key, value in node.entries.items():
            name = self._fill_text(key, node.locate(key)) if "$" in key else key
            if name in entries:
                self.problems.append(Problem(f"'{name}' comes twice", node.locate(key)))
            entries[name], lines[name] = self(value), node.locate(key)
        return Fields(entries, node.where, lines)

    def _fill_scalar(self, node: Scalar, text: str) -> Node:
        match = _STEP_USE.fullmatch(text)
        if match:
            name, instance, checkpoints, adapter = match.groups(default="")
            if name in self.variables and text == f"${name}":
                self.used.add(name)
                return self.variables[name]
            if name in self.steps:
                return StepUse(name, instance, checkpoints, adapter, node.where)
        before = len(self.problems)
        replaced = self._fill_text(text, node.where)
        if len(self.problems) > before:
            return StepUse("", "", "", "", node.where)
        if text.startswith("$$"):  # a text, not the name of a step
            return Scalar(replaced, text, node.where)
        return Scalar(replaced, replaced, node.where)

    def _fill_text(self, text: str, where: str) -> str:
        return _VARIABLE_USE.sub(lambda match: self._fill_word(match[1], text, where), text)

    def _fill_word(self, word: str, text: str, where: str) -> str:
        if word == "$":
            return "$"
        for name in _list_prefixes(word):
            if name in self.variables:
                return self._put(name, where) + word.removeprefix(name)
            if name in self.steps:
                message = f"'{text}': a step's output is written alone, as ${name}"
                self.problems.append(Problem(f"{message} or ${name}.checkpoints", where))
                return word
        hint = suggest(word, [*self.variables, *self.steps]).replace("mean '", "mean '$")
        hint = hint or " (a plain dollar is written `$$`)"
        message = f"${word} is neither an earlier step nor a variable of `foreach`{hint}"
        self.problems.append(Problem(message, where))
        return word

    def _put(self, name: str, where: str) -> str:
        self.used.add(name)
        value = self.variables[name]
        if isinstance(value, Scalar):
            return value.text
        message = f"${name} is {describe_node(value)} and cannot stand inside text"
        self.problems.append(Problem(message, where))
        return name


def _list_prefixes(word: str) -> Iterator[str]:
    """Yield a name, then its part before each `-`, longest first: `$lang-eval` may mean `$lang`."""
    yield word
    while "-" in word:
        word = word.rpartition("-")[0]
        yield word
