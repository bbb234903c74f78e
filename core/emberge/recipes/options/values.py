"""Values without parts: numbers, words, plain data, paths, schedules."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge.contracts import PerTensor, limits_of, unsound_number
from emberge.recipes.options import field_types as forms
from emberge.recipes.options.builder import BROKEN, Builder, Handler, OptionPath
from emberge.yaml_nodes import Fields, Items, Node, Scalar, StepUse, plain, words

if TYPE_CHECKING:
    from pydantic import TypeAdapter


def _value(build: Builder, form: forms.Value, node: Node, at: OptionPath) -> Any:
    from pydantic import ValidationError

    if any(_uses(node)):
        return build.misfit(form, node, at)
    if form.type is not str and not _has_sound_numbers(build, node, at):
        return BROKEN
    try:
        adapter = _adapter(form.type)
    except TypeError:  # limits that cannot be hashed
        adapter = _adapter.__wrapped__(form.type)
    try:
        value = adapter.validate_python(plain(node), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"].endswith(("_type", "_parsing")) or first["type"].startswith("int_from"):
            return build.misfit(form, node, at)
        message = first["msg"].removeprefix("Input ").removeprefix("Value error, ")
        return build.refuse(f"{at.label} {message}, not {words(node)}", node.where)
    limits = limits_of(form.type)
    if limits is not None and not limits.has(value):
        return build.misfit(form, node, at)
    return value


def _has_sound_numbers(build: Builder, node: Node, at: OptionPath) -> bool:
    """Return whether every number inside a node is one that options take; note the first that is not."""
    for one in _scalars(node):
        wrong = unsound_number(one.value)
        if wrong:
            build.refuse(f"{at.label} needs {wrong}, not {words(one)}", one.where)
            return False
    return True


def _scalars(node: Node) -> Iterator[Scalar]:
    if isinstance(node, Scalar):
        yield node
    elif isinstance(node, Items | Fields):
        for one in node.items if isinstance(node, Items) else node.entries.values():
            yield from _scalars(one)


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _choice(build: Builder, form: forms.Choice, node: Node, at: OptionPath) -> Any:
    if isinstance(node, Scalar):
        for value in form.values:
            if value == node.value and isinstance(value, bool) == isinstance(node.value, bool):
                return value
    return build.misfit(form, node, at)


def _anything(build: Builder, form: forms.Anything, node: Node, at: OptionPath) -> Any:
    if any(_uses(node)):
        return build.misfit(form, node, at)
    return plain(node) if _has_sound_numbers(build, node, at) else BROKEN


def _uses(node: Node) -> Iterator[StepUse]:
    if isinstance(node, StepUse):
        yield node
    elif isinstance(node, Items | Fields):
        inner = node.items if isinstance(node, Items) else node.entries.values()
        for one in inner:
            yield from _uses(one)


def _folder(build: Builder, form: forms.Folder, node: Node, at: OptionPath) -> Any:
    if not isinstance(node, Scalar) or not isinstance(node.value, str) or not node.value:
        return build.misfit(form, node, at)
    return build.folder / Path(node.value).expanduser()


def _schedule(build: Builder, form: forms.Schedule, node: Node, at: OptionPath) -> Any:
    within = at.default.within if isinstance(at.default, PerTensor) else None
    if isinstance(node, StepUse):
        return build.misfit(form, node, at)
    if not _has_sound_numbers(build, node, at):
        return BROKEN
    try:
        return form.type(plain(node), within=within)
    except ValueError as error:
        return build.refuse(f"{at.label}: {error}", node.where)


HANDLERS: Mapping[type, Handler] = {
    forms.Value: _value,
    forms.Choice: _choice,
    forms.Anything: _anything,
    forms.Folder: _folder,
    forms.Schedule: _schedule,
}
