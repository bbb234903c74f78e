"""The forms of options: a field's annotation, read once, as the values that a recipe may give.

The grammar builds values by these forms, and the schema and the tables are derived from them.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from emberge.contracts import (
    ChainSpec,
    MergeStrategy,
    MergeTransform,
    PerDataset,
    PerTensor,
    Reader,
    Reference,
    Sampler,
    Stage,
)
from emberge.plugins import KINDS


@dataclass(frozen=True)
class Value:
    """A number, text or truth value, maybe annotated with limits; pydantic checks it strictly."""

    type: Any


@dataclass(frozen=True)
class Choice:
    """One of some words or numbers."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Anything:
    """Plain data of any shape."""


@dataclass(frozen=True)
class Folder:
    """A path, relative to the recipe."""


@dataclass(frozen=True)
class Ref:
    """A reference: a step's output or something outside the recipe."""

    type: type[Reference]


@dataclass(frozen=True)
class Schedule:
    """A number that may vary over depth, tensors or models."""

    type: type[PerTensor]


@dataclass(frozen=True)
class Part:
    """One component of these contracts."""

    contracts: tuple[type, ...]


@dataclass(frozen=True)
class Parts:
    """Components of these contracts: a chain of stages or samplers, a sum of losses, or a plain list."""

    contracts: tuple[type, ...]

    @property
    def chain(self) -> bool:
        """True for the links of a merge, a strategy last."""
        return Stage in self.contracts or {MergeStrategy, MergeTransform} <= set(self.contracts)

    @property
    def ordered(self) -> bool:
        """True if their order matters, so that they are a list and never a mapping."""
        return self.chain or Sampler in self.contracts


@dataclass(frozen=True)
class Record:
    """A nested dataclass: a mapping of its fields, or its first field's value."""

    type: type


@dataclass(frozen=True)
class Many:
    """Any number of values as a `tuple`, `list`, `frozenset` or `set`; a single one needs no list."""

    item: Form
    container: type


@dataclass(frozen=True)
class Fixed:
    """A tuple of as many values as there are forms."""

    items: tuple[Form, ...]


@dataclass(frozen=True)
class Table:
    """A mapping of free names to values."""

    item: Form


@dataclass(frozen=True)
class ByData:
    """A value that may differ by task or dataset."""

    item: Form


@dataclass(frozen=True)
class Maybe:
    """A value or nothing."""

    item: Form


@dataclass(frozen=True)
class Either:
    """The first of these forms that fits."""

    forms: tuple[Form, ...]


Form = (
    Value
    | Choice
    | Anything
    | Folder
    | Ref
    | Schedule
    | Part
    | Parts
    | Record
    | Many
    | Fixed
    | Table
    | ByData
    | Maybe
    | Either
)

CONTRACTS = (
    Stage,
    *(c for _, cs in KINDS.values() for c in cs if c not in (ChainSpec, Reader)),
)
_SEQUENCES = {
    tuple: tuple,
    list: list,
    set: set,
    frozenset: frozenset,
    collections.abc.Sequence: tuple,
    collections.abc.Iterable: tuple,
    collections.abc.Collection: tuple,
    collections.abc.Set: frozenset,
}
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def kinds_of(contracts: tuple[type, ...]) -> tuple[str, ...]:
    """Return the kinds of component that follow one of the contracts."""
    return tuple(
        kind
        for kind, (_, known) in KINDS.items()
        if any(issubclass(k, contracts) for k in known if k is not ChainSpec)
    )


def form_of(annotation: Any) -> Form:
    """Return the form of a type.

    Raises:
        TypeError: for a type that no recipe can express.
    """
    if get_origin(annotation) is Annotated:
        inner = form_of(get_args(annotation)[0])
        return Value(annotation) if isinstance(inner, Value) else inner
    if get_origin(annotation) is None:
        return _plain_form(annotation)
    return _generic_form(annotation, get_origin(annotation), get_args(annotation))


def _plain_form(annotation: Any) -> Form:
    if annotation is Any or annotation is object or isinstance(annotation, TypeVar):
        return Anything()
    if annotation in _SEQUENCES:
        return Many(Anything(), _SEQUENCES[annotation])
    if annotation in _MAPPINGS:
        return Table(Anything())
    if annotation is PerDataset:
        return ByData(Anything())
    if isinstance(annotation, type):
        return _class_form(annotation)
    return _checked(annotation)


def _class_form(annotation: type) -> Form:
    if issubclass(annotation, Reference):
        return Ref(annotation)
    if issubclass(annotation, PerTensor):
        return Schedule(annotation)
    if issubclass(annotation, Path):
        return Folder()
    if annotation in CONTRACTS:
        return Part((annotation,))
    return Record(annotation) if dataclasses.is_dataclass(annotation) else _checked(annotation)


def _generic_form(annotation: Any, origin: Any, arguments: tuple[Any, ...]) -> Form:
    if origin is PerDataset:
        return ByData(form_of(arguments[0]))
    if origin is Literal:
        return Choice(arguments)
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is ...):
        return Fixed(tuple(form_of(argument) for argument in arguments))
    if origin in _SEQUENCES:
        item = form_of(arguments[0])
        if isinstance(item, Part) and _SEQUENCES[origin] is tuple:
            return Parts(item.contracts)
        return Many(item, _SEQUENCES[origin])
    if origin in _MAPPINGS:
        return Table(form_of(arguments[1]))
    return _checked(annotation)


def _union(arguments: tuple[Any, ...]) -> Form:
    forms = [form_of(argument) for argument in arguments if argument is not type(None)]
    parts = [form for form in forms if isinstance(form, Part)]
    if len(parts) > 1:
        joined = Part(tuple(contract for part in parts for contract in part.contracts))
        forms = [joined, *(form for form in forms if not isinstance(form, Part))]
    form = forms[0] if len(forms) == 1 else Either(tuple(forms))
    return Maybe(form) if type(None) in arguments else form


def _checked(annotation: Any) -> Form:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        TypeAdapter(annotation)
    except PydanticUserError:
        raise TypeError(f"a recipe cannot express a {annotation!r}") from None
    return Value(annotation)
