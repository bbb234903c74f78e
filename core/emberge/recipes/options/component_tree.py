"""The one walker of a component's fields, and the one way from a component to plain values."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from emberge.contracts import Reference


def fields_in(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each field of a dataclass instance."""
    for option in dataclasses.fields(value):
        yield option.name, getattr(value, option.name)


def parts_of(value: Any, *leaves: type) -> Iterator[tuple[str, Any]]:
    """Yield every part of a component with its path (`models.0.weight`), parents first, itself at "".

    Dataclasses, mappings, sequences and sets are walked into, except those of a type in `leaves`.
    """
    yield "", value
    if not isinstance(value, leaves):
        for key, child in _children(value):
            for path, part in parts_of(child, *leaves):
                yield f"{key}.{path}" if path else key, part


def references(value: Any) -> Iterator[Reference]:
    """Yield every reference in a component, however deep."""
    return (part for _, part in parts_of(value, Reference) if isinstance(part, Reference))


def to_plain(
    value: Any,
    leaf: Callable[[Any], Any],
    record: Callable[[Any, Callable[[Any], Any]], Any],
    leaves: tuple[type, ...],
) -> Any:
    """Return a component as mappings with text keys, lists, and the values that `record` and `leaf` return.

    `record(dataclass, inner)` turns a dataclass into plain values, using `inner` for its fields; `leaf` does
    so for all that has no parts, and for values of a type in `leaves`. Sets become lists in a fixed order.
    """

    def inner(part: Any) -> Any:
        if isinstance(part, leaves):
            return leaf(part)
        if _is_record(part):
            return record(part, inner)
        if isinstance(part, Mapping):
            return {str(key): inner(one) for key, one in part.items()}
        if isinstance(part, list | tuple):
            return [inner(one) for one in part]
        if isinstance(part, set | frozenset):
            return sorted((inner(one) for one in part), key=_sortable)
        return leaf(part)

    return inner(value)


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if _is_record(value):
        yield from fields_in(value)
    elif isinstance(value, Mapping):
        yield from ((str(key), one) for key, one in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((str(index), one) for index, one in enumerate(value))


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _sortable(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
