"""Building of option values from YAML nodes; a node that does not fit becomes a problem at its line.

This module has what all forms share; `values` and `components` build the values of single forms.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge.contracts import Reference
from emberge.errors import Problem, suggest
from emberge.plugins import Plugins
from emberge.recipes.options import option_forms as forms
from emberge.recipes.options.option_forms import Form
from emberge.recipes.options.phrases import describe_form
from emberge.yaml_nodes import Node, Scalar, StepUse, describe_node, is_number


class _Broken:
    """The placeholder for a value that could not be built; its problem has been noted."""


BROKEN: Any = _Broken()


@dataclass(frozen=True)
class Instance:
    """A step that others may name: its concrete id, its variables, and its kind of result ("" if unknown)."""

    id: str
    variables: Mapping[str, Any]
    produces: str


@dataclass(frozen=True)
class OptionPath:
    """The path of a value in a step: in the recipe as written, and in the built step."""

    label: str
    """For messages: "option 'ratio' of sampler 'bagging'"."""
    written: str = ""
    built: str = ""
    entry: bool = False
    """True inside an item of a list; a reference to several steps repeats the item."""
    default: Any = None
    """The option's default; a schedule must stay within the default's limits."""

    def under(self, written: object = None, built: object = None, **changes: Any) -> OptionPath:
        """Return the path one level deeper; None leaves the written or the built path unchanged."""
        return dataclasses.replace(
            self,
            written=_join_path(self.written, written),
            built=_join_path(self.built, built),
            **changes,
        )


def _join_path(path: str, key: object) -> str:
    return path if key is None else f"{path}.{key}" if path else f"{key}"


@dataclass
class Builder:
    """The builder of one step instance's values; it collects the problems, and the lines of options."""

    handlers: Mapping[type, Handler]
    """The function that builds a form's values, by the form's type."""
    plugins: Plugins
    folder: Path
    targets: Mapping[str, Sequence[Instance]]
    variables: Mapping[str, Any]
    problems: list[Problem] = field(default_factory=list)
    lines: dict[str, str] = field(default_factory=dict)
    chosen: dict[str, Instance] = field(default_factory=dict)
    references: list[tuple[Reference, str]] = field(default_factory=list)
    """The built references to what is outside the recipe, and their places, also of a faulty step."""

    def value(self, form: Form, node: Node, at: OptionPath) -> Any:
        """Build the value of a node; return BROKEN if a problem was noted."""
        if isinstance(node, StepUse) and not node.group:
            return BROKEN
        for path in (at.written, at.built):
            self.lines.setdefault(path, node.where)
        return self.handlers[type(form)](self, form, node, at)

    def refuse(self, message: str, where: str) -> Any:
        """Note a problem and return BROKEN."""
        self.problems.append(Problem(message, where))
        return BROKEN

    def misfit(self, form: Form, node: Node, at: OptionPath) -> Any:
        """Note the problem that a node does not fit its form, and return BROKEN."""
        hint = ""
        if isinstance(node, Scalar) and node.value is not None:
            hint = _suggest_fix(form, node)
        return self.refuse(
            f"{at.label} needs {describe_form(form)}, not {describe_node(node)}{hint}", node.where
        )


Handler = Callable[[Builder, Any, Node, OptionPath], Any]


def _suggest_fix(form: Form, node: Scalar) -> str:
    texts = [value for value in _list_choices(form) if isinstance(value, str)]
    if isinstance(node.value, str):
        quoted = _is_number_form(form) and is_number(node.value)
        return "; write it without quotes" if quoted else suggest(node.value, texts)
    takes_text = isinstance(form, forms.Ref | forms.Folder) or form == forms.Value(str)
    return "; put it in quotes" if takes_text or node.text in texts else ""


def _is_number_form(form: Form) -> bool:
    if not isinstance(form, forms.Value):
        return False
    return getattr(form.type, "__origin__", form.type) in (int, float)


def _list_choices(form: Form) -> Iterator[Any]:
    if isinstance(form, forms.Choice):
        yield from form.values
    elif isinstance(form, forms.Either):
        for inner in form.forms:
            yield from _list_choices(inner)
    elif isinstance(form, forms.Maybe):
        yield from _list_choices(form.item)
