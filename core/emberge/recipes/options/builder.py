"""Building of option values from YAML nodes; what does not fit becomes a problem at its line.

This is what all forms share; `values`, `nested` and `components` each build some of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge.errors import Problem, suggest
from emberge.plugins import Plugins
from emberge.recipes.options import option_forms as forms
from emberge.recipes.options.option_forms import Form
from emberge.recipes.options.phrases import describe_form
from emberge.yaml_nodes import Node, Scalar, StepUse, is_number, words


class _Broken:
    """The stand-in for a value that could not be built and whose problem was noted."""


BROKEN: Any = _Broken()


@dataclass(frozen=True)
class Instance:
    """A step that others may name: its concrete id, its variables, and what it makes ("" if unknown)."""

    id: str
    variables: Mapping[str, Any]
    produces: str


@dataclass(frozen=True)
class OptionPath:
    """The place of a value in a step: as the recipe writes it, and as the built step has it."""

    label: str
    """For messages: "option 'ratio' of sampler 'bagging'"."""
    written: str = ""
    built: str = ""
    entry: bool = False
    """Inside an item of a list, which a reference to several steps repeats."""
    default: Any = None
    """The option's own default, whose limits a schedule keeps."""

    def under(self, written: object = None, built: object = None, **changes: Any) -> OptionPath:
        """Return the place one level deeper; None leaves a path unchanged."""
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
    """The builder of one step instance's values, which notes problems and lines as it goes."""

    handlers: Mapping[type, Handler]
    """The function that builds a form, by the form's type."""
    plugins: Plugins
    folder: Path
    targets: Mapping[str, Sequence[Instance]]
    variables: Mapping[str, Any]
    problems: list[Problem] = field(default_factory=list)
    lines: dict[str, str] = field(default_factory=dict)
    chosen: dict[str, Instance] = field(default_factory=dict)

    def value(self, form: Form, node: Node, at: OptionPath) -> Any:
        """Build the value of a node; return BROKEN where a problem was noted."""
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
        """Note that a node does not fit its form, and return BROKEN."""
        hint = ""
        if isinstance(node, Scalar) and node.value is not None:
            hint = _suggest_fix(form, node)
        return self.refuse(
            f"{at.label} needs {describe_form(form)}, not {words(node)}{hint}", node.where
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
