"""The options of a component: the fields of its dataclass, each with the form of its type."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from types import SimpleNamespace
from typing import Any

from emberge.contracts import Requires, default_component
from emberge.errors import PluginError
from emberge.recipes.options.field_types import CONTRACTS, Form, form_of


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
    """The component that is built where the option is left out: its name, or `{name: options}`."""
    requires: Requires | None = None
    """The other option that it has no effect without."""

    @property
    def required(self) -> bool:
        """True if a recipe must give it."""
        return self.default is MISSING


def options_of(owner: type) -> Mapping[str, Option]:
    """Return the options of a component or nested dataclass by name, its own before those it inherits.

    Those of one class come in the order in which it declares them.

    Raises:
        PluginError: naming class and field, for a type that cannot be found or expressed in a recipe.
    """
    return _options_of(owner)


@functools.cache
def _options_of(owner: Any) -> Mapping[str, Option]:
    found: dict[str, Option] = {}
    for option in dataclasses.fields(owner):
        if not option.init or option.name.startswith("_"):
            continue
        declared = _declared_by(owner, option.name)
        default = option.default
        if option.default_factory is not MISSING:
            default = option.default_factory()
        hint = _field_type(declared, option.name)
        found[option.name] = Option(
            option.name,
            hint.form,
            declared,
            default,
            default_component(option),
            hint.requires,
        )
    # A dataclass keeps the place of a field that it declares anew; its first own option is meant otherwise.
    declared_first = [
        found[name]
        for one in owner.__mro__
        for name in inspect.get_annotations(one)
        if name in found and found[name].owner is one
    ]
    return types.MappingProxyType({option.name: option for option in declared_first})


def _declared_by(owner: type, name: str) -> type:
    for one in owner.__mro__:
        if name in inspect.get_annotations(one):
            return one
    return owner


@dataclass(frozen=True)
class _FieldType:
    form: Form
    requires: Requires | None


def _field_type(owner: type, name: str) -> _FieldType:
    annotation = inspect.get_annotations(owner)[name]
    module = vars(sys.modules[owner.__module__]) if owner.__module__ in sys.modules else {}
    one = SimpleNamespace(__annotations__={name: annotation})
    place = f"{owner.__module__}.{owner.__qualname__}: the type of option '{name}'"
    try:
        hints = typing.get_type_hints(
            one, globalns=dict(vars(owner)), localns=dict(module), include_extras=True
        )
        marks = getattr(hints[name], "__metadata__", ())
        requires = next((mark for mark in marks if isinstance(mark, Requires)), None)
        return _FieldType(form_of(hints[name]), requires)
    except NameError as error:
        raise PluginError(
            f"{place} names '{error.name}', which is not there when the plugin runs; "
            "import it outside `if TYPE_CHECKING`"
        ) from error
    except TypeError as error:
        raise PluginError(f"{place} cannot be used: {error}") from error


def first_option(owner: type) -> Option | None:
    """Return the option that `name: value` means: the first that the class itself declares.

    A class that declares none takes that of the nearest class above it that does, short of a contract.
    """
    options = options_of(owner)
    for one in owner.__mro__:
        if one in CONTRACTS:
            return None
        for option in options.values():
            if option.owner is one:
                return option
    return None
