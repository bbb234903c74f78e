"""Walk over the parts of a component: the fields of dataclasses, and the values that they contain."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def fields_in(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each field of a dataclass instance."""
    for option in dataclasses.fields(value):
        yield option.name, getattr(value, option.name)


def parts_of(value: Any, *leaves: type) -> Iterator[tuple[str, Any]]:
    """Yield every part of a component with its path (`models.0.weight`), parents first, the component at "".

    Dataclasses, mappings, sequences and sets are searched for parts, except values of a type in `leaves`.
    """
    yield "", value
    if not isinstance(value, leaves):
        for key, child in _list_children(value):
            for path, part in parts_of(child, *leaves):
                yield f"{key}.{path}" if path else key, part


def _list_children(value: Any) -> Iterator[tuple[str, Any]]:
    if is_record(value):
        yield from fields_in(value)
    elif isinstance(value, Mapping):
        yield from ((str(key), child) for key, child in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((str(index), child) for index, child in enumerate(value))


def replace_parts(value: Any, kind: type[T], change: Callable[[T], T]) -> Any:
    """Return a component with each part of a `kind` replaced by what `change` returns for it.

    Dataclasses, mappings, lists and tuples are searched; a value without such a part is returned itself.
    """
    if isinstance(value, kind):
        return change(value)
    if is_record(value):
        changes = {
            name: new
            for name, part in fields_in(value)
            if (new := replace_parts(part, kind, change)) is not part
        }
        return dataclasses.replace(value, **changes) if changes else value
    if isinstance(value, Mapping):
        parts = {key: replace_parts(part, kind, change) for key, part in value.items()}
        return parts if any(parts[key] is not part for key, part in value.items()) else value
    if isinstance(value, list | tuple):
        items = [replace_parts(part, kind, change) for part in value]
        is_same = all(new is part for new, part in zip(items, value, strict=True))
        return value if is_same else type(value)(items)
    return value


def is_record(value: Any) -> bool:
    """Return whether a value is an instance of a dataclass."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
