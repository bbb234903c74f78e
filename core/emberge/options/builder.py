"""The builder of option values from YAML nodes; a node that does not fit becomes a problem at its line.

A form (`forms`) describes the values that an option accepts. `build` calls the function that `values` or
`components` has registered for the form's class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge.errors import Problem, suggest
from emberge.options.forms import Form
from emberge.plugins import Plugins
from emberge.yaml_nodes import Node, Scalar, StepUse, describe_node


class _Broken:
    """The placeholder for a value that could not be built; its problem has been noted."""


BROKEN: Any = _Broken()


@dataclass(frozen=True)
class StepInstance:
    """A step that others may name: its concrete id, its variables, and its kind of result ("" if unknown)."""

    id: str
    variables: Mapping[str, Any]
    produces: str


@dataclass(frozen=True)
class OptionPath:
    """The path of a value in the built step, and its name in messages."""

    label: str
    """For messages: "option 'ratio' of sampler 'bagging'"."""
    path: str = ""
    entry: bool = False
    """True inside an item of a list, which is repeated if it names several steps."""

    def extend(self, key: object, **changes: Any) -> OptionPath:
        """Return the path one level deeper."""
        path = f"{self.path}.{key}" if self.path else f"{key}"
        return dataclasses.replace(self, path=path, **changes)


@dataclass
class Builder:
    """The builder of one step instance's values; it collects the problems, and the lines of options."""

    plugins: Plugins
    folder: Path
    """The folder at which relative paths start."""
    targets: Mapping[str, Sequence[StepInstance]] = field(default_factory=dict)
    """The instances of each earlier step of the recipe."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    lines: dict[str, str] = field(default_factory=dict)
    chosen: dict[str, StepInstance] = field(default_factory=dict)
    """The instance that stands for each group while an item of a list is repeated."""
    misfits: list[Node] = field(default_factory=list)
    """The nodes that did not fit their forms at all."""

    def build(self, form: Form, node: Node, at: OptionPath) -> Any:
        """Build the value of a node; return BROKEN if a problem was noted."""
        if isinstance(node, StepUse) and not node.group:
            return BROKEN
        self.lines.setdefault(at.path, node.where)
        return _BUILD_FUNCTIONS[type(form)](self, form, node, at)

    def refuse(self, message: str, where: str) -> Any:
        """Note a problem and return BROKEN."""
        self.problems.append(Problem(message, where))
        return BROKEN

    def refuse_misfit(self, form: Form, node: Node, at: OptionPath) -> Any:
        """Note the problem that a node does not fit its form, and return BROKEN."""
        texts = [value for value in form.choices if isinstance(value, str)]
        value = node.value if isinstance(node, Scalar) else None
        hint = suggest(value, texts) if isinstance(value, str) else ""
        self.misfits.append(node)
        return self.refuse(
            f"{at.label} needs {form.words}, not {describe_node(node)}{hint}", node.where
        )


BuildFunction = Callable[[Builder, Any, Node, OptionPath], Any]
_BUILD_FUNCTIONS: dict[type[Form], BuildFunction] = {}


def register_for(form: type[Form]) -> Callable[[BuildFunction], BuildFunction]:
    """Return a decorator for the function that builds the values of a form."""

    def register(function: BuildFunction) -> BuildFunction:
        _BUILD_FUNCTIONS[form] = function
        return function

    return register
