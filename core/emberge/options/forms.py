"""The forms of options: the annotation of a field as a description of the values that a recipe may give it.

The builder, the JSON Schema and the tables of options all follow these forms.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from emberge.contracts import (
    ChainSpec,
    NumberRange,
    PerDataset,
    PerModel,
    PerTensor,
    Reader,
    Reference,
    Sampler,
    Stage,
    StepRef,
    find_limits,
)
from emberge.errors import PluginError
from emberge.plugins import KINDS, find_contracts


class Form:
    """The values that an option accepts."""

    @property
    def words(self) -> str:
        """The values in words: "a number", "one of a, b", "a model or nothing"."""
        return "any plain value"

    @property
    def choices(self) -> tuple[Any, ...]:
        """The words and numbers that are accepted by name."""
        return ()

    @property
    def record(self) -> type | None:
        """The nested dataclass that is accepted, alone, in a list, or as one of several forms."""
        return None


_SCALARS = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}


@dataclass(frozen=True)
class Value(Form):
    """A number, text or truth value; a number may have limits."""

    type: type
    limits: NumberRange | None = None

    @property
    def words(self) -> str:
        return f"{_SCALARS[self.type]} {self.limits.words() if self.limits else ''}".strip()


@dataclass(frozen=True)
class Choice(Form):
    """One of several given words or numbers."""

    values: tuple[Any, ...]

    @property
    def words(self) -> str:
        return "one of " + ", ".join(str(value) for value in self.values)

    @property
    def choices(self) -> tuple[Any, ...]:
        return self.values


@dataclass(frozen=True)
class Anything(Form):
    """Form of an option that takes plain data of any structure."""


@dataclass(frozen=True)
class PathForm(Form):
    """A path, relative to the recipe."""

    words = "a path"


@dataclass(frozen=True)
class Ref(Form):
    """A reference: a step's output or something outside the recipe."""

    type: type[Reference]

    @property
    def words(self) -> str:
        if issubclass(self.type, StepRef):
            return "an earlier step"
        return " or ".join(map(add_article, self.type.accepts))


@dataclass(frozen=True)
class Schedule(Form):
    """A number that may vary over depth, tensors or models, within the limits of the option's default."""

    type: type[PerTensor]
    within: tuple[float, float] | None = None

    @property
    def words(self) -> str:
        over = ", tensors or models" if self.type is PerModel else " or tensors"
        limits = "" if self.within is None else f" from {self.within[0]:g} to {self.within[1]:g}"
        return f"a number{limits} that may vary over depth{over}"


@dataclass(frozen=True)
class OneComponent(Form):
    """One component of these contracts."""

    contracts: tuple[type, ...]

    @property
    def words(self) -> str:
        kinds = find_kinds(self.contracts)
        return add_article("merge strategy" if len(kinds) > 1 else kinds[0])


@dataclass(frozen=True)
class SeveralComponents(Form):
    """Components of these contracts: a chain of stages or samplers, a sum of losses, or a plain list."""

    contracts: tuple[type, ...]

    @property
    def is_ordered(self) -> bool:
        """True if the components' order matters, so that they are written as a list, not as a mapping."""
        return Stage in self.contracts or Sampler in self.contracts

    @property
    def words(self) -> str:
        if Stage in self.contracts:
            return "a merge strategy or a chain that ends with one"
        kind = find_kinds(self.contracts)[0]
        words = {
            "sampler": "a sampler or a chain of them",
            "loss": "a loss or a list of them, summed",
        }
        return words.get(kind, f"one or more {kind}s")


@dataclass(frozen=True)
class Record(Form):
    """A nested dataclass: a mapping of its fields, or its first field's value."""

    type: type

    @property
    def words(self) -> str:
        return f"a mapping ({', '.join(read_options(self.type))})"

    @property
    def record(self) -> Any:  # the field hides the word `type`
        return self.type


@dataclass(frozen=True)
class Fixed(Form):
    """A tuple of as many values as there are forms."""

    items: tuple[Form, ...]

    @property
    def words(self) -> str:
        return f"a list of {len(self.items)} ({', '.join(item.words for item in self.items)})"


@dataclass(frozen=True)
class Either(Form):
    """The first of these forms that fits."""

    forms: tuple[Form, ...]

    @property
    def words(self) -> str:
        return " or ".join(form.words for form in self.forms)

    @property
    def choices(self) -> tuple[Any, ...]:
        return tuple(choice for form in self.forms for choice in form.choices)

    @property
    def record(self) -> type | None:
        return next((form.record for form in self.forms if form.record), None)


@dataclass(frozen=True)
class _Wrapped(Form):
    """Values made of values of another form."""

    item: Form
    template: ClassVar[str]

    @property
    def words(self) -> str:
        return self.template.format(self.item.words)

    @property
    def record(self) -> type | None:
        return self.item.record


@dataclass(frozen=True)
class Many(_Wrapped):
    """Any number of values, as a tuple; a single value needs no list."""

    template = "{}, or a list of such"


@dataclass(frozen=True)
class Table(_Wrapped):
    """A mapping of free names to values."""

    template = "a mapping of names to {}"


@dataclass(frozen=True)
class ByData(_Wrapped):
    """A value that may differ by task or dataset."""

    template = "{}, which may differ by task or dataset"


@dataclass(frozen=True)
class Maybe(_Wrapped):
    """Form of an option that takes a value or null."""

    template = "{} or nothing"

    @property
    def choices(self) -> tuple[Any, ...]:
        return self.item.choices


def add_article(word: str) -> str:
    """Return the word with "a" or "an" before it, if it takes one: "an evaluator", "data"."""
    if word in ("data", "scores", "statistics"):
        return word
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


CONTRACTS = (
    Stage,
    *(c for kind in KINDS for c in find_contracts(kind) if c not in (ChainSpec, Reader)),
)


def find_kinds(contracts: tuple[type, ...]) -> tuple[str, ...]:
    """Return the kinds of component that follow one of the contracts."""
    return tuple(
        kind
        for kind in KINDS
        if any(issubclass(k, contracts) for k in find_contracts(kind) if k is not ChainSpec)
    )


def read_form(annotation: Any) -> Form:
    """Return the `Form`, the values that a recipe may write, of an option's annotated type.

    Raises:
        TypeError: if no recipe can express the type.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = read_form(arguments[0])
        limits = find_limits(annotation)
        return dataclasses.replace(inner, limits=limits) if isinstance(inner, Value) else inner
    form = _read_class(annotation) if origin is None else _read_generic(origin, arguments)
    if form is None:
        raise TypeError(f"a recipe cannot express a {annotation!r}")
    return form


def _read_class(annotation: Any) -> Form | None:
    if annotation in (Any, object) or isinstance(annotation, TypeVar):
        return Anything()
    if annotation in _SCALARS:
        return Value(annotation)
    if annotation in CONTRACTS:
        return OneComponent((annotation,))
    if not isinstance(annotation, type):
        return None
    if issubclass(annotation, Path):
        return PathForm()
    by_base: dict[type, Any] = {Reference: Ref, PerTensor: Schedule}
    for base, form in by_base.items():
        if issubclass(annotation, base):
            return form(annotation)  # type: ignore[no-any-return]
    return Record(annotation) if dataclasses.is_dataclass(annotation) else None


def _read_generic(origin: Any, arguments: tuple[Any, ...]) -> Form | None:
    if origin is Literal:
        return Choice(arguments)
    if origin in (Union, types.UnionType):
        return _read_union(arguments)
    if origin is PerDataset:
        return ByData(read_form(arguments[0]))
    if origin in (dict, collections.abc.Mapping):
        return Table(read_form(arguments[1]))
    if origin is tuple and arguments[1:] != (...,):
        return Fixed(tuple(read_form(argument) for argument in arguments))
    if origin in (tuple, collections.abc.Sequence):
        item = read_form(arguments[0])
        return SeveralComponents(item.contracts) if isinstance(item, OneComponent) else Many(item)
    return None


def _read_union(arguments: tuple[Any, ...]) -> Form:
    forms = [read_form(argument) for argument in arguments if argument is not type(None)]
    parts = [form for form in forms if isinstance(form, OneComponent)]
    if len(parts) > 1:
        joined_part = OneComponent(tuple(contract for part in parts for contract in part.contracts))
        forms = [joined_part, *(form for form in forms if not isinstance(form, OneComponent))]
    form = forms[0] if len(forms) == 1 else Either(tuple(forms))
    return Maybe(form) if type(None) in arguments else form


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
    doc: str = ""
    """The documentation; empty until `document_options` fills it in."""

    @property
    def required(self) -> bool:
        """True if a recipe must give the option."""
        return self.default is MISSING


_OPTIONS_BY_CLASS: dict[type, Mapping[str, Option]] = {}


def read_options(owner: type) -> Mapping[str, Option]:
    """Return the options of a component or nested dataclass by name, its own before inherited options.

    Options of one class come in the order of their declaration.

    Raises:
        PluginError: if a field has no type, or one that cannot be found or expressed in a recipe; names the
            class and the field.
    """
    if owner in _OPTIONS_BY_CLASS:
        return _OPTIONS_BY_CLASS[owner]
    fields: dict[str, dataclasses.Field[Any]] = {
        field.name: field
        for field in dataclasses.fields(owner)
        if field.init and not field.name.startswith("_")
    }
    # dataclasses.fields() keeps an inherited field's position even if the class declares the field
    # again, but the class's own options come first here.
    options: dict[str, Option] = {}
    for class_ in owner.__mro__:
        for name in inspect.get_annotations(class_):
            if name in fields and name not in options:
                options[name] = _read_option(class_, fields[name])
    known = {name for base in owner.__mro__[1:] for name in vars(base)}
    known |= {name for class_ in owner.__mro__ for name in inspect.get_annotations(class_)}
    for name, value in vars(owner).items():
        is_option = name.islower() and name[0] != "_" and name not in known
        if is_option and isinstance(value, int | float | str):
            raise PluginError(
                f"{owner.__module__}.{owner.__qualname__}: '{name}' has no type, so it is no option; write "
                f"{name}: {type(value).__name__} = {value!r}, or ClassVar if it is none"
            )
    return _OPTIONS_BY_CLASS.setdefault(owner, types.MappingProxyType(options))


def _read_option(owner: type, field: dataclasses.Field[Any]) -> Option:
    default = field.default
    if field.default_factory is not MISSING:
        default = field.default_factory()
    label = f"{owner.__module__}.{owner.__qualname__}: the type of option '{field.name}'"
    module = vars(sys.modules[owner.__module__]) if owner.__module__ in sys.modules else {}
    # A holder of one annotation, as `get_type_hints` of the class would evaluate all of them.
    holder = SimpleNamespace(
        __annotations__={field.name: inspect.get_annotations(owner)[field.name]}
    )
    try:
        types_by_name = typing.get_type_hints(
            holder, globalns=dict(vars(owner)), localns=dict(module), include_extras=True
        )
        form = read_form(types_by_name[field.name])
    except NameError as error:
        raise PluginError(
            f"{label} names '{error.name}', which is not there when the plugin runs; "
            "import it outside `if TYPE_CHECKING`"
        ) from error
    except TypeError as error:
        raise PluginError(f"{label} cannot be used: {error}") from error
    if isinstance(form, Schedule) and isinstance(default, PerTensor):
        form = dataclasses.replace(form, within=default.within)
    return Option(field.name, form, owner, default, field.metadata.get("component"))


def find_first_option(*owners: type) -> Option | None:
    """Return the option that `name: value` means: the first option that one of the classes itself declares.

    If a class declares no option, its nearest base class with an option decides; contracts are not
    considered.
    """
    for owner in owners:
        contract_index = next((i for i, c in enumerate(owner.__mro__) if c in CONTRACTS), None)
        for class_ in owner.__mro__[:contract_index]:
            for option in read_options(owner).values():
                if option.owner is class_:
                    return option
    return None
