"""Values that consist of values: lists, tables, values by task or dataset, alternatives."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from emberge.contracts import TASK_KINDS, PerDataset
from emberge.errors import Problem, suggest
from emberge.recipes.options import field_types as forms
from emberge.recipes.options.builder import BROKEN, Builder, Handler, OptionPath
from emberge.recipes.options.field_types import Form
from emberge.recipes.options.resolve_references import SeveralSteps
from emberge.yaml_nodes import Fields, Items, Node, Scalar, StepUse


def _many(build: Builder, form: forms.Many, node: Node, at: OptionPath) -> Any:
    if isinstance(node, Scalar) and node.value is None:
        return build.misfit(form, node, at)
    alone = not isinstance(node, Items)
    nodes = [node] if alone else node.items  # type: ignore[union-attr]
    values: list[Any] = []
    for index, item in enumerate(nodes):
        inner = dataclasses.replace(at, entry=True, default=None)
        inner = inner.under(None if alone else index)
        values += _entries(build, form.item, item, inner, len(values))
    return BROKEN if BROKEN in values else form.container(values)


def _entries(build: Builder, form: Form, node: Node, at: OptionPath, position: int) -> list[Any]:
    """Build one item, or one for each step where it names several."""
    try:
        return [build.value(form, node, at.under(None, position))]
    except SeveralSteps as spread:
        values: list[Any] = []
        for one in spread.candidates:
            build.chosen[spread.group] = one
            try:
                values += _entries(build, form, node, at, position + len(values))
            finally:
                del build.chosen[spread.group]
        return values


def _fixed(build: Builder, form: forms.Fixed, node: Node, at: OptionPath) -> Any:
    if not isinstance(node, Items) or len(node.items) != len(form.items):
        return build.misfit(form, node, at)
    pairs = enumerate(zip(form.items, node.items, strict=True))
    values = [build.value(f, item, at.under(i, i, default=None)) for i, (f, item) in pairs]
    return BROKEN if BROKEN in values else tuple(values)


def _table(build: Builder, form: forms.Table, node: Node, at: OptionPath) -> Any:
    if not isinstance(node, Fields):
        return build.misfit(form, node, at)
    inner = dataclasses.replace(at, default=None)
    values = {
        key: build.value(form.item, value, inner.under(key, key))
        for key, value in node.entries.items()
    }
    return BROKEN if BROKEN in values.values() else values


_LONG = ("default", "by_task", "by_dataset")


def _by_data(build: Builder, form: forms.ByData, node: Node, at: OptionPath) -> Any:
    inner = dataclasses.replace(at, default=getattr(at.default, "default", None))
    if not isinstance(node, Fields) or not any(
        key in _LONG or key.startswith("by_") for key in node.entries
    ):
        value = build.value(form.item, node, inner.under(None, "default"))
        return BROKEN if value is BROKEN else PerDataset(default=value)
    values: dict[str, Any] = {}
    for key, entry in node.entries.items():
        if key not in _LONG:
            hint = suggest(key, _LONG) or f"; it has {', '.join(_LONG)}"
            values[key] = build.refuse(f"{at.label} has no part '{key}'{hint}", node.line(key))
        elif key == "default":
            values[key] = build.value(form.item, entry, inner.under(key, key))
        else:
            values[key] = _by_name(build, form, key, entry, inner.under(key, key))
    return BROKEN if BROKEN in values.values() else PerDataset(**values)


def _by_name(build: Builder, form: forms.ByData, key: str, node: Node, at: OptionPath) -> Any:
    if not isinstance(node, Fields):
        what = "task kinds" if key == "by_task" else "dataset names"
        return build.refuse(f"{at.label}: '{key}' is a mapping of {what} to values", node.where)
    broken = False
    for task in node.entries if key == "by_task" else ():
        if task not in TASK_KINDS:
            hint = suggest(task, TASK_KINDS) or f"; there are {', '.join(TASK_KINDS)}"
            build.refuse(f"there is no task kind '{task}'{hint}", node.line(task))
            broken = True
    values = _table(build, forms.Table(form.item), node, at)
    return BROKEN if broken else values


def _maybe(build: Builder, form: forms.Maybe, node: Node, at: OptionPath) -> Any:
    if isinstance(node, Scalar) and node.value is None:
        return None
    return build.value(form.item, node, at)


def _either(build: Builder, form: forms.Either, node: Node, at: OptionPath) -> Any:
    """Build the value by the first form that fits; note the problems of the nearest one where none does."""
    tries: list[tuple[Form, list[Problem]]] = []
    for one in form.forms:
        trial = dataclasses.replace(build, problems=[], lines={})
        value = trial.value(one, node, at)
        if value is not BROKEN:
            build.lines.update(trial.lines)
            return value
        tries.append((one, trial.problems))
    near = [problems for one, problems in tries if _resembles(one, node)]
    if len(near) != 1:
        return build.misfit(form, node, at)
    build.problems += near[0]
    return BROKEN


def _resembles(form: Form, node: Node) -> bool:
    """Return whether a form takes nodes of this shape at all."""
    shapes: dict[type, tuple[type, ...]] = {
        forms.Record: (Fields,),
        forms.Table: (Fields,),
        forms.Part: (Fields, Scalar),
        forms.Parts: (Fields, Scalar, Items),
        forms.Many: (Items,),
        forms.Fixed: (Items,),
        forms.Schedule: (Items,),
        forms.Ref: (StepUse,),
    }
    if isinstance(form, forms.Schedule) and isinstance(node, Scalar):
        return isinstance(node.value, int | float)
    return isinstance(node, shapes.get(type(form), ()))


HANDLERS: Mapping[type, Handler] = {
    forms.Many: _many,
    forms.Fixed: _fixed,
    forms.Table: _table,
    forms.ByData: _by_data,
    forms.Maybe: _maybe,
    forms.Either: _either,
}
