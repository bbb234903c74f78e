"""The forms of options: a field's annotation, read once, as the values that a recipe may give.

The grammar builds values by these forms, and the schema and the tables are derived from them.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from emberge.contracts import (
    ChainSpec,
    MergeStrategy,
    MergeTransform,
    PerDataset,
    PerTensor,
    Reader,
    Reference,
    Requires,
    Sampler,
    Stage,
    default_component,
)
from emberge.errors import PluginError
from emberge.plugins import KINDS


@dataclass(frozen=True)
class Value:
    """A number, text or truth value, possibly annotated with limits; pydantic checks it strictly."""

    type: Any


@dataclass(frozen=True)
class Choice:
    """One of several given words or numbers."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Anything:
    """Plain data of any structure."""


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
        """True for the links of a merge, the last of which is a strategy."""
        return Stage in self.contracts or {MergeStrategy, MergeTransform} <= set(self.contracts)

    @property
    def ordered(self) -> bool:
        """True if the components' order matters, so that they are written as a list, not as a mapping."""
        return self.chain or Sampler in self.contracts


@dataclass(frozen=True)
class Record:
    """A nested dataclass: a mapping of its fields, or its first field's value."""

    type: type


@dataclass(frozen=True)
class Many:
    """Any number of values as a `tuple`, `list`, `frozenset` or `set`; a single value needs no list."""

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
        for kind, (_, kind_contracts) in KINDS.items()
        if any(issubclass(k, contracts) for k in kind_contracts if k is not ChainSpec)
    )


def form_of(annotation: Any) -> Form:
    """Return the form of a type.

    Raises:
        TypeError: if no recipe can express the type.
    """
    if get_origin(annotation) is Annotated:
        inner = form_of(get_args(annotation)[0])
        return Value(annotation) if isinstance(inner, Value) else inner
    if get_origin(annotation) is None:
        return _form_of_plain_type(annotation)
    return _form_of_generic(annotation, get_origin(annotation), get_args(annotation))


def _form_of_plain_type(annotation: Any) -> Form:
    if annotation is Any or annotation is object or isinstance(annotation, TypeVar):
        return Anything()
    if annotation in _SEQUENCES:
        return Many(Anything(), _SEQUENCES[annotation])
    if annotation in _MAPPINGS:
        return Table(Anything())
    if annotation is PerDataset:
        return ByData(Anything())
    if isinstance(annotation, type):
        return _form_of_class(annotation)
    return _form_of_checked_type(annotation)


def _form_of_class(annotation: type) -> Form:
    if issubclass(annotation, Reference):
        return Ref(annotation)
    if issubclass(annotation, PerTensor):
        return Schedule(annotation)
    if issubclass(annotation, Path):
        return Folder()
    if annotation in CONTRACTS:
        return Part((annotation,))
    return (
        Record(annotation)
        if dataclasses.is_dataclass(annotation)
        else _form_of_checked_type(annotation)
    )


def _form_of_generic(annotation: Any, origin: Any, arguments: tuple[Any, ...]) -> Form:
    if origin is PerDataset:
        return ByData(form_of(arguments[0]))
    if origin is Literal:
        return Choice(arguments)
    if origin in (Union, types.UnionType):
        return _form_of_union(arguments)
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is ...):
        return Fixed(tuple(form_of(argument) for argument in arguments))
    if origin in _SEQUENCES:
        item = form_of(arguments[0])
        if isinstance(item, Part) and _SEQUENCES[origin] is tuple:
            return Parts(item.contracts)
        return Many(item, _SEQUENCES[origin])
    if origin in _MAPPINGS:
        return Table(form_of(arguments[1]))
    return _form_of_checked_type(annotation)


def _form_of_union(arguments: tuple[Any, ...]) -> Form:
    forms = [form_of(argument) for argument in arguments if argument is not type(None)]
    parts = [form for form in forms if isinstance(form, Part)]
    if len(parts) > 1:
        joined_part = Part(tuple(contract for part in parts for contract in part.contracts))
        forms = [joined_part, *(form for form in forms if not isinstance(form, Part))]
    form = forms[0] if len(forms) == 1 else Either(tuple(forms))
    return Maybe(form) if type(None) in arguments else form


def _form_of_checked_type(annotation: Any) -> Form:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        TypeAdapter(annotation)
    except PydanticUserError:
        raise TypeError(f"a recipe cannot express a {annotation!r}") from None
    return Value(annotation)


@dataclass(frozen=True)
class Option:
    """One option of a component: a field of its dataclass."""

    name: str
    form: Form
    owner: type
    """The class that declares it."""
    default: Any = MISSING
    """The field's default, built if it has a factory; MISSING for a required option."""
    component: str | Mapping[str, Any] | None = None
    """The component that is built if the option is left out: its name, or `{name: options}`."""
    requires: Requires | None = None
    """The other option without which this option has no effect."""

    @property
    def required(self) -> bool:
        """True if a recipe must give the option."""
        return self.default is MISSING


def options_of(owner: type) -> Mapping[str, Option]:
    """Return the options of a component or nested dataclass by name, its own before inherited options.

    Options of one class come in the order of their declaration.

    Raises:
        PluginError: if a field's type cannot be found or expressed in a recipe; names the class and the
            field.
    """
    return _read_options(owner)


@functools.cache
def _read_options(owner: Any) -> Mapping[str, Option]:
    options: dict[str, Option] = {}
    for option in dataclasses.fields(owner):
        if not option.init or option.name.startswith("_"):
            continue
        declared = _find_declaring_class(owner, option.name)
        default = option.default
        if option.default_factory is not MISSING:
            default = option.default_factory()
        hint = _read_field_type(declared, option.name)
        options[option.name] = Option(
            option.name,
            hint.form,
            declared,
            default,
            default_component(option),
            hint.requires,
        )
    # dataclasses.fields() keeps an inherited field's position even if the class declares the field
    # again, but the class's own options come first here.
    declared_first = [
        options[name]
        for class_ in owner.__mro__
        for name in inspect.get_annotations(class_)
        if name in options and options[name].owner is class_
    ]
    return types.MappingProxyType({option.name: option for option in declared_first})


def _find_declaring_class(owner: type, name: str) -> type:
    for class_ in owner.__mro__:
        if name in inspect.get_annotations(class_):
            return class_
    return owner


@dataclass(frozen=True)
class _FieldType:
    form: Form
    requires: Requires | None


def _read_field_type(owner: type, name: str) -> _FieldType:
    annotation = inspect.get_annotations(owner)[name]
    module = vars(sys.modules[owner.__module__]) if owner.__module__ in sys.modules else {}
    annotation_holder = SimpleNamespace(__annotations__={name: annotation})
    label = f"{owner.__module__}.{owner.__qualname__}: the type of option '{name}'"
    try:
        hints = typing.get_type_hints(
            annotation_holder, globalns=dict(vars(owner)), localns=dict(module), include_extras=True
        )
        annotations = getattr(hints[name], "__metadata__", ())
        requires = next((mark for mark in annotations if isinstance(mark, Requires)), None)
        return _FieldType(form_of(hints[name]), requires)
    except NameError as error:
        raise PluginError(
            f"{label} names '{error.name}', which is not there when the plugin runs; "
            "import it outside `if TYPE_CHECKING`"
        ) from error
    except TypeError as error:
        raise PluginError(f"{label} cannot be used: {error}") from error


def first_option(owner: type) -> Option | None:
    """Return the option that `name: value` means: the first option that the class itself declares.

    If the class declares no option, its nearest base class with an option decides; contracts are not
    considered.
    """
    options = options_of(owner)
    for class_ in owner.__mro__:
        if class_ in CONTRACTS:
            return None
        for option in options.values():
            if option.owner is class_:
                return option
    return None
