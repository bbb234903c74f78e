"""YAML 1.2 as nodes that know their `file:line`.

PyYAML reads YAML 1.1, where `on` is true and `12:30` is 750. Only its scanner and composer are used here;
the meaning of a plain word follows the core schema of YAML 1.2, with `<<` kept for merging anchors. Aliases
are written out, up to a number of values: a few lines of nested aliases may mean billions of values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.reader import ReaderError
from yaml.resolver import BaseResolver

from emberge.errors import Problem


@dataclass(frozen=True)
class Scalar:
    """A word, number, truth value or null, with its text as it was written."""

    value: bool | int | float | str | None
    text: str
    where: str


@dataclass(frozen=True)
class Items:
    """A list."""

    items: tuple[Node, ...]
    where: str


@dataclass(frozen=True)
class Fields:
    """A mapping; `lines` maps each key to its place."""

    entries: Mapping[str, Node]
    where: str
    lines: Mapping[str, str] = field(default_factory=dict)

    def locate(self, key: str) -> str:
        """Return the place of a key."""
        return self.lines.get(key, self.where)


@dataclass(frozen=True)
class StepUse:
    """`$group`, `$group.n=1`, `$group.checkpoints` or `$group+adapter`: a step's output, not yet looked up.

    `group` is empty for an unknown `$name`, which was noted as a problem.
    """

    group: str
    instance: str
    """The end of one instance's id, such as `.n=1`; empty for all of the group."""
    checkpoints: str
    """`.checkpoints`, or empty."""
    adapter: str
    """`+` and an adapter's address, or empty."""
    where: str

    @property
    def text(self) -> str:
        """The text as it was written."""
        return f"${self.group}{self.instance}{self.checkpoints}{self.adapter}"


Node = Scalar | Items | Fields | StepUse

MOST_VALUES = 200_000
"""Largest number of values of a document whose aliases are written out."""

_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_SPECIAL_WORDS = {
    "null": {"", "~", "null", "Null", "NULL"},
    "bool": {"true", "True", "TRUE", "false", "False", "FALSE"},
}


class _CoreResolver(BaseResolver):
    """The types of plain scalars in YAML 1.2's core schema."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> str:
        if kind is not yaml.ScalarNode or not implicit[0]:
            return super().resolve(kind, value, implicit)  # type: ignore[no-any-return,no-untyped-call]
        if value == "<<":
            return _TAG + "merge"
        for tag, words in _SPECIAL_WORDS.items():
            if value in words:
                return _TAG + tag
        if _INT.fullmatch(value):
            return _TAG + "int"
        return _TAG + ("float" if _FLOAT.fullmatch(value) else "str")


class _Dumper(_CoreResolver, yaml.SafeDumper):
    """A writer that quotes each text which YAML 1.2 would read as a number, truth value or null."""

    def ignore_aliases(self, data: Any) -> bool:
        """Return True: equal values are written out, as a reader of the text expects."""
        return True


class _Loader(_CoreResolver, yaml.SafeLoader):
    """A reader whose composer alone is used."""


# Messages for what is wrong where PyYAML began to read something, by its name for that; it notices later.
_UNFINISHED_MESSAGES = {
    "while scanning a simple key": "a ':' is missing here, or the space after it",
    "while scanning a quoted scalar": "the quote that opens here is not closed",
}


def read_yaml(
    text: str, place: Callable[[int], str], problems: list[Problem], *, what: str = "the recipe"
) -> Node | None:
    """Read the one document of a text; problems are added to `problems`, and a broken text gives None.

    `place` turns a line number, from 1, into words.
    """
    line = 1
    try:
        root = _Loader(text).get_single_node()
        if root is not None:
            return _NodeConverter(place, problems).convert(root)
        message = f"{what} is empty"
    except ReaderError as error:
        line = text.count("\n", 0, int(error.position)) + 1
        message = f"YAML has no place for {error.character!r}"
    except yaml.MarkedYAMLError as error:
        message = _UNFINISHED_MESSAGES.get(str(error.context), "")
        mark = (error.context_mark if message else error.problem_mark) or error.context_mark
        line, message = mark.line + 1 if mark else 1, message or _describe_syntax_error(error)
    except RecursionError:
        message = f"{what} is nested too deeply"
    except _TooManyValuesError:
        message = f"with its aliases this is more than {MOST_VALUES:,} values; repeat fewer"
    problems.append(Problem(message, place(line)))
    return None


def _describe_syntax_error(error: yaml.MarkedYAMLError) -> str:
    message = str(error.problem or error.context)
    if r"'\t'" in message:
        return "a tab stands here; indent with spaces"
    context = f"{error.context}, " if error.context and error.problem else ""
    return f"this is not YAML: {context}{message}"


class _TooManyValuesError(Exception):
    """A document means too many values."""


@dataclass
class _NodeConverter:
    """The conversion of PyYAML's nodes to ours, in which each use of an alias is a node again."""

    place: Callable[[int], str]
    problems: list[Problem]
    value_count: int = 0

    def convert(self, node: yaml.Node) -> Node:
        """Return a node of ours; problems in it are noted.

        Raises:
            _TooManyValuesError: if the document means more than `MOST_VALUES` values.
            RecursionError: if it is nested too deeply, as an anchor inside itself is.
        """
        self.value_count += 1
        if self.value_count > MOST_VALUES:
            raise _TooManyValuesError
        where = self.place(node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            return self._read_scalar(node, where)
        if node.tag not in (_TAG + "seq", _TAG + "map"):
            self.problems.append(Problem(f"the tag {node.tag} means nothing here", where))
        if isinstance(node, yaml.SequenceNode):
            return Items(tuple(self.convert(item) for item in node.value), where)
        return self._read_fields(node, where)

    def _read_fields(self, node: yaml.Node, where: str) -> Fields:
        entries: dict[str, Node] = {}
        lines: dict[str, str] = {}
        merged: list[Fields] = []
        for key, value in node.value:
            key_place = self.place(key.start_mark.line + 1)
            if key.tag == _TAG + "merge":
                merged += self._read_merged_fields(value)
            elif not isinstance(key, yaml.ScalarNode) or key.tag == _TAG + "null":
                self.problems.append(Problem("a key must be a word", key_place))
            elif key.value in entries:
                message = f"'{key.value}' is written twice, first at {lines[key.value]}"
                self.problems.append(Problem(message, key_place))
            else:
                entries[key.value], lines[key.value] = self.convert(value), key_place
        for other in merged:
            for name in [n for n in other.entries if n not in entries]:
                entries[name], lines[name] = other.entries[name], other.locate(name)
        return Fields(entries, where, lines)

    def _read_merged_fields(self, node: yaml.Node) -> Iterator[Fields]:
        is_list = isinstance(node, yaml.SequenceNode)
        for inner in node.value if is_list else [node]:
            converted = self.convert(inner)
            if isinstance(converted, Fields):
                yield converted
            else:
                message = "`<<` takes a mapping, such as *anchor, or a list of them"
                self.problems.append(Problem(message, converted.where))

    def _read_scalar(self, node: yaml.ScalarNode, where: str) -> Scalar:
        kind = node.tag.removeprefix(_TAG)
        convert = _CONVERTERS.get("str" if kind == "merge" else kind)
        if convert is None:
            self.problems.append(Problem(f"the tag {node.tag} means nothing here", where))
            return Scalar(node.value, node.value, where)
        try:
            return Scalar(convert(node.value), node.value, where)
        except ValueError:
            self.problems.append(Problem(f"{node.value[:60]!r} is no {kind}", where))
            return Scalar(None, node.value, where)


def _parse_bool(text: str) -> bool:
    if text not in _SPECIAL_WORDS["bool"]:
        raise ValueError(text)
    return text.lower() == "true"


def _parse_float(text: str) -> float:
    return float(text.replace(".inf", "inf").replace(".nan", "nan") if "." in text else text)


_CONVERTERS: dict[str, Callable[[str], Any]] = {
    "null": lambda _: None,
    "bool": _parse_bool,
    "int": lambda text: int(text, 0) if text[:2] in ("0x", "0o") else int(text),
    "float": lambda text: _parse_float(text.lower()),
    "str": str,
}


def to_plain(node: Node) -> Any:
    """Return the node as plain Python data; a reference to a step becomes its text."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, StepUse):
        return node.text
    if isinstance(node, Items):
        return [to_plain(item) for item in node.items]
    return {key: to_plain(value) for key, value in node.entries.items()}


def walk_leaves(node: Node) -> Iterator[Scalar | StepUse]:
    """Yield every scalar and every reference to a step inside a node."""
    if isinstance(node, Scalar | StepUse):
        yield node
    else:
        for inner in node.items if isinstance(node, Items) else node.entries.values():
            yield from walk_leaves(inner)


def write_yaml(data: Any) -> str:
    """Return plain Python data as a text that `read_yaml` reads as equal data."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text


def build_node(value: Any, where: str, *, deep_places: bool = False) -> Node:
    """Return plain Python data as a node at the place `where`.

    With `deep_places`, the place of an inner value is its path, `where.key.0`, in place of `where` itself.

    Raises:
        TypeError: if YAML cannot express a value.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return Scalar(value, "null" if value is None else str(value), where)
    if not isinstance(value, Mapping | Sequence):
        raise TypeError(f"YAML has no {type(value).__name__}")
    children = value.items() if isinstance(value, Mapping) else enumerate(value)
    nodes = {
        str(key): build_node(
            child, f"{where}.{key}" if deep_places else where, deep_places=deep_places
        )
        for key, child in children
    }
    if isinstance(value, Mapping):
        return Fields(nodes, where, {key: node.where for key, node in nodes.items()})
    return Items(tuple(nodes.values()), where)


def describe_node(node: Node) -> str:
    """Describe a node in a few words, for messages: "the number 5", "the text 'five'", "a list"."""
    if isinstance(node, Items):
        return "a list" if node.items else "an empty list"
    if isinstance(node, Fields):
        return "a mapping" if node.entries else "an empty mapping"
    if isinstance(node, StepUse):
        return f"the step {node.text}"
    if node.value is None:
        return "nothing"
    if isinstance(node.value, bool):
        return node.text.lower()
    if isinstance(node.value, str):
        shown = node.value if len(node.value) <= 60 else node.value[:57] + "…"
        return f"the text {shown!r}"
    if not isinstance(node.value, int) and not math.isfinite(node.value):
        return "NaN" if math.isnan(node.value) else "infinity"
    return f"the number {node.text}"
