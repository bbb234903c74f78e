"""The builder of option values from YAML nodes; a node that does not fit becomes a problem at its line.

A form (`forms`) describes the values that an option accepts. For the class of each form, a function is
registered with `build_value`: here for numbers, words, paths, references, lists and tables, in `components`
for components.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge.contracts import TASK_KINDS, PerDataset, StepRef, explain_unsound_number
from emberge.errors import Problem, suggest
from emberge.options import forms
from emberge.options.forms import Form, add_article
from emberge.plugins import Plugins
from emberge.yaml_nodes import (
    Fields,
    Items,
    Node,
    Scalar,
    StepUse,
    describe_node,
    to_plain,
    walk_leaves,
)


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
    in_list: bool = False
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
    instance_by_group: dict[str, StepInstance] = field(default_factory=dict)
    """The instance that stands for each group while an item of a list is repeated."""
    misfits: list[Node] = field(default_factory=list)
    """The nodes that did not fit their forms at all."""

    def build(self, form: Form, node: Node, at: OptionPath) -> Any:
        """Build the value of a node; return BROKEN if a problem was noted."""
        if isinstance(node, StepUse) and not node.group:
            return BROKEN
        self.lines.setdefault(at.path, node.where)
        return build_value(form, self, node, at)

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


@functools.singledispatch
def build_value(form: Form, builder: Builder, node: Node, at: OptionPath) -> Any:
    """Build the value of a node by its form; a form without a function of its own takes any plain data."""
    if any(isinstance(leaf, StepUse) for leaf in walk_leaves(node)):
        return builder.refuse_misfit(form, node, at)
    return to_plain(node) if _has_sound_numbers(builder, node, at) else BROKEN


@build_value.register(forms.Value)
def _build_value(form: forms.Value, builder: Builder, node: Node, at: OptionPath) -> Any:
    value = node.value if isinstance(node, Scalar) else None
    if form.type is not str and not _has_sound_numbers(builder, node, at):
        return BROKEN
    if form.type is float and type(value) is int:
        value = float(value)
    if type(value) is not form.type or (form.limits and not form.limits.has(value)):  # type: ignore[arg-type]
        return builder.refuse_misfit(form, node, at)
    return value


def _has_sound_numbers(builder: Builder, node: Node, at: OptionPath) -> bool:
    """Return whether options accept every number inside a node; note the first number that they refuse."""
    for leaf in walk_leaves(node):
        wrong = explain_unsound_number(leaf.value) if isinstance(leaf, Scalar) else ""
        if wrong:
            builder.refuse(f"{at.label} needs {wrong}, not {describe_node(leaf)}", leaf.where)
            return False
    return True


@build_value.register(forms.Choice)
def _build_choice(form: forms.Choice, builder: Builder, node: Node, at: OptionPath) -> Any:
    if isinstance(node, Scalar):
        for value in form.values:
            if value == node.value and isinstance(value, bool) == isinstance(node.value, bool):
                return value
    return builder.refuse_misfit(form, node, at)


@build_value.register(forms.PathForm)
def _build_path(form: forms.PathForm, builder: Builder, node: Node, at: OptionPath) -> Any:
    if not isinstance(node, Scalar) or not isinstance(node.value, str) or not node.value:
        return builder.refuse_misfit(form, node, at)
    return builder.folder / Path(node.value).expanduser()


@build_value.register(forms.Schedule)
def _build_schedule(form: forms.Schedule, builder: Builder, node: Node, at: OptionPath) -> Any:
    if isinstance(node, StepUse):
        return builder.refuse_misfit(form, node, at)
    if not _has_sound_numbers(builder, node, at):
        return BROKEN
    try:
        return form.type(to_plain(node), within=form.within)
    except ValueError as error:
        return builder.refuse(f"{at.label}: {error}", node.where)


class _SeveralSteps(Exception):  # noqa: N818 - no error: the list around it repeats the entry
    """A reference to several steps where only one is allowed."""

    def __init__(self, group: str, candidates: Sequence[StepInstance]) -> None:
        self.group = group
        self.candidates = candidates


@build_value.register(forms.Ref)
def _build_reference(form: forms.Ref, builder: Builder, node: Node, at: OptionPath) -> Any:
    if isinstance(node, StepUse):
        return _build_step_reference(form, builder, node, at)
    if not isinstance(node, Scalar) or not isinstance(node.value, str) or not node.value.strip():
        return builder.refuse_misfit(form, node, at)
    if issubclass(form.type, StepRef):
        group_names = ", ".join(f"${group}" for group in builder.targets)
        hint = f"; earlier steps: {group_names}" if group_names else ""
        return builder.refuse(
            f"{at.label} needs a step, not the text {node.text!r}{hint}", node.where
        )
    # Two dollars mean one dollar in a text, not a step.
    text = f"./{node.value}" if node.value.startswith("$") else node.value
    return form.type(text, builder.folder)


def _build_step_reference(form: forms.Ref, builder: Builder, node: StepUse, at: OptionPath) -> Any:
    instances, id_ = builder.targets.get(node.group, ()), f"{node.group}{node.instance}"
    candidates = _find_candidates(builder, node.group)
    if node.instance:
        candidates = [step for step in instances if step.id == id_]
    if not candidates and not (instances and all(step.produces for step in instances)):
        return BROKEN  # a problem of that step has been noted
    if not candidates and node.instance:
        hint = suggest(id_, [step.id for step in instances]) or f"; there is {instances[0].id}"
        return builder.refuse(f"there is no step '{id_}'{hint}", node.where)
    if not candidates:
        names = ", ".join(f"{name}={value}" for name, value in builder.variables.items())
        return builder.refuse(f"no step of ${node.group} has {names}", node.where)
    if len(candidates) > 1:
        if at.in_list:
            raise _SeveralSteps(node.group, candidates)
        ids = [step.id for step in candidates[:3]] + (["…"] if len(candidates) > 3 else [])
        return builder.refuse(
            f"{at.label} takes one, and ${node.group} is {len(candidates)} steps ({', '.join(ids)})",
            node.where,
        )
    (step,) = candidates
    # Only models have checkpoints; what a faulty step produces may be unknown.
    is_accepted = not step.produces or step.produces in form.type.accepts
    if not is_accepted or (node.checkpoints and step.produces not in ("model", "")):
        message = (
            f"{node.text} makes {add_article(step.produces)}, and {at.label} takes {form.words}"
        )
        return builder.refuse(message, node.where)
    return form.type(f"${step.id}{node.checkpoints}{node.adapter}", builder.folder)


def _find_candidates(builder: Builder, group: str) -> list[StepInstance]:
    """Return the group's instances that agree with this step's variables and the instances chosen so far."""
    if group in builder.instance_by_group:
        return [builder.instance_by_group[group]]
    variables = dict(builder.variables)
    for step in builder.instance_by_group.values():
        variables.update(step.variables)
    instances = builder.targets.get(group, ())
    return [step for step in instances if _have_equal_values(step.variables, variables)]


def _have_equal_values(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return all(
        a[name] == b[name] and isinstance(a[name], bool) == isinstance(b[name], bool)
        for name in a.keys() & b.keys()
    )


@build_value.register(forms.Many)
def _build_list(form: forms.Many, builder: Builder, node: Node, at: OptionPath) -> Any:
    if isinstance(node, Scalar) and node.value is None:
        return builder.refuse_misfit(form, node, at)
    values: list[Any] = []
    for item in node.items if isinstance(node, Items) else (node,):
        values += _build_entries(builder, form.item, item, at, len(values))
    return BROKEN if BROKEN in values else tuple(values)


def _build_entries(
    builder: Builder, form: Form, node: Node, at: OptionPath, position: int
) -> list[Any]:
    """Build the values of one item: a single value, or one for each step if the item names several steps."""
    try:
        return [builder.build(form, node, at.extend(position, in_list=True))]
    except _SeveralSteps as spread:
        values: list[Any] = []
        for candidate in spread.candidates:
            builder.instance_by_group[spread.group] = candidate
            try:
                values += _build_entries(builder, form, node, at, position + len(values))
            finally:
                del builder.instance_by_group[spread.group]
        return values


@build_value.register(forms.Fixed)
def _build_fixed(form: forms.Fixed, builder: Builder, node: Node, at: OptionPath) -> Any:
    if not isinstance(node, Items) or len(node.items) != len(form.items):
        return builder.refuse_misfit(form, node, at)
    pairs = enumerate(zip(form.items, node.items, strict=True))
    values = [builder.build(f, item, at.extend(i)) for i, (f, item) in pairs]
    return BROKEN if BROKEN in values else tuple(values)


@build_value.register(forms.Table)
def _build_table(form: forms.Table, builder: Builder, node: Node, at: OptionPath) -> Any:
    if not isinstance(node, Fields):
        return builder.refuse_misfit(form, node, at)
    values = {key: builder.build(form.item, v, at.extend(key)) for key, v in node.entries.items()}
    return BROKEN if BROKEN in values.values() else values


_BY_DATA_KEYS = ("default", "by_task", "by_dataset")


@build_value.register(forms.ByData)
def _build_by_data(form: forms.ByData, builder: Builder, node: Node, at: OptionPath) -> Any:
    if not isinstance(node, Fields) or not any(
        key == "default" or key.startswith("by_") for key in node.entries
    ):
        value = builder.build(form.item, node, at.extend("default"))
        return BROKEN if value is BROKEN else PerDataset(default=value)
    values: dict[str, Any] = {}
    for key, entry in node.entries.items():
        if key == "default":
            values[key] = builder.build(form.item, entry, at.extend(key))
        elif key in _BY_DATA_KEYS:
            values[key] = _build_by_name(form, builder, key, entry, at.extend(key))
        else:
            hint = suggest(key, _BY_DATA_KEYS) or f"; it has {', '.join(_BY_DATA_KEYS)}"
            values[key] = builder.refuse(f"{at.label} has no part '{key}'{hint}", node.locate(key))
    return BROKEN if BROKEN in values.values() else PerDataset(**values)


def _build_by_name(
    form: forms.ByData, builder: Builder, key: str, node: Node, at: OptionPath
) -> Any:
    if not isinstance(node, Fields):
        key_noun = "task kinds" if key == "by_task" else "dataset names"
        return builder.refuse(
            f"{at.label}: '{key}' is a mapping of {key_noun} to values", node.where
        )
    values = _build_table(forms.Table(form.item), builder, node, at)
    for task in node.entries if key == "by_task" else ():
        if task not in TASK_KINDS:
            hint = suggest(task, TASK_KINDS) or f"; there are {', '.join(TASK_KINDS)}"
            values = builder.refuse(f"there is no task kind '{task}'{hint}", node.locate(task))
    return values


@build_value.register(forms.Maybe)
def _build_optional(form: forms.Maybe, builder: Builder, node: Node, at: OptionPath) -> Any:
    if isinstance(node, Scalar) and node.value is None:
        return None
    return builder.build(form.item, node, at)


@build_value.register(forms.Either)
def _build_alternative(form: forms.Either, builder: Builder, node: Node, at: OptionPath) -> Any:
    """Build the value by the first form that fits; if none does, note why the last one that was near failed.

    A form is near if the node fits it as a whole, and only a value inside the node is wrong.
    """
    nearest: Builder | None = None
    for alternative in form.forms:
        trial = dataclasses.replace(builder, problems=[], lines={}, misfits=[])
        value = trial.build(alternative, node, at)
        if value is not BROKEN:
            builder.lines.update(trial.lines)
            return value
        if not any(misfit is node for misfit in trial.misfits):
            nearest = trial
    if nearest is None:
        return builder.refuse_misfit(form, node, at)
    builder.problems += nearest.problems
    return BROKEN
