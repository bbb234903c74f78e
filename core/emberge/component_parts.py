"""Walk over the parts of a component: the fields of dataclasses, and the values that they contain."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any


def walk_fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each field of a dataclass instance."""
    for field in dataclasses.fields(value):
        yield field.name, getattr(value, field.name)


def walk_parts(value: Any, *leaves: type) -> Iterator[tuple[str, Any]]:
    """Yield every part of a component with its path (`models.0.weight`), parents first, the component at "".

    Dataclasses, mappings, sequences and sets are searched for parts, except values of a type in `leaves`.
    """
    yield "", value
    children: Iterable[tuple[object, Any]] = ()
    if isinstance(value, leaves):
        return
    if is_record(value):
        children = walk_fields(value)
    elif isinstance(value, Mapping):
        children = value.items()
    elif isinstance(value, list | tuple | set | frozenset):
        children = enumerate(value)
    for key, child in children:
        for path, part in walk_parts(child, *leaves):
            yield f"{key}.{path}" if path else str(key), part


def is_record(value: Any) -> bool:
    """Return whether a value is an instance of a dataclass."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def convert_parts(
    value: Any,
    leaf: Callable[[Any], Any],
    record: Callable[[Any, Callable[[Any], Any]], Any],
    leaves: tuple[type, ...],
) -> Any:
    """Return a component as plain data: mappings with text keys, lists, and values without parts.

    `record(dataclass, inner)` returns the plain data of a dataclass, with `inner` applied to its fields'
    values; `leaf(value)` that of a value without parts, or of a type in `leaves`. Sets become lists in a
    fixed order.
    """

    def inner(part: Any) -> Any:
        if isinstance(part, leaves):
            return leaf(part)
        if is_record(part):
            return record(part, inner)
        if isinstance(part, Mapping):
            return {str(key): inner(child) for key, child in part.items()}
        if isinstance(part, list | tuple):
            return [inner(child) for child in part]
        if isinstance(part, set | frozenset):
            return sorted((inner(child) for child in part), key=_sort_key)
        return leaf(part)

    return inner(value)


def _sort_key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
