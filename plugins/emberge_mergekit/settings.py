"""Parameters of a config: values by filter and over depth, and the order in which settings apply.

mergekit reads a source's own parameters first, then the parameters of its slice, its module and the config.
In each of them it uses the first filter that matches. One list of all settings in this order has the same
meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from emberge import Problem, suggest

from emberge_mergekit.config import Scope
from emberge_mergekit.library import describe_parameter_problem

# It only saves memory in mergekit, and configs set it even for methods that do not have it.
UNUSED_PARAMETER = "int8_mask"


@dataclass(frozen=True)
class Entry:
    """One value, or a tuple of values over depth, for the tensors whose name contains `filter`."""

    value: Any
    filter: str | None

    @property
    def covers_all(self) -> bool:
        """True for a setting of every tensor."""
        return self.filter in (None, "*")

    @property
    def values(self) -> tuple[Any, ...]:
        """The value, or those over depth."""
        return self.value if isinstance(self.value, tuple) else (self.value,)


Setting = tuple[Entry, ...]
Settings = Mapping[str, Setting]


def read_scopes(
    scopes: Iterable[Scope], declared: Mapping[str, Any], method: str, *, of_models: bool
) -> tuple[list[Settings], list[Problem]]:
    """Return (settings of each `parameters` mapping in the types that the method declares, problems).

    With `of_models` each scope is that of one model, where mergekit reads no parameter of the whole merge.
    """
    problems: list[Problem] = []

    def read_setting(scope: Scope, name: str, value: Any) -> Setting:
        parameter = declared.get(name)
        if name == UNUSED_PARAMETER:
            return ()
        if parameter is None:
            hint = suggest(name, declared) or f"; it has {', '.join(declared) or 'none'}"
            texts = [f"merge method '{method}' has no parameter '{name}'{hint}"]
        elif of_models and parameter.scope == "shared":
            texts = [
                f"'{name}' is one for the whole merge and is not read at a model; move it to 'parameters' of "
                "the config or of the slice"
            ]
        else:
            texts = list(_describe_value_problems(name, parameter, value))
        problems.extend(Problem(text, scope.place.at(name).where) for text in texts)
        return () if texts else _convert_setting(parameter, value)

    settings: list[Settings] = [
        {name: read_setting(scope, name, value) for name, value in scope.parameters.items()}
        for scope in scopes
    ]
    return settings, problems


def _list_conditions(value: Any) -> list[tuple[str | None, Any]]:
    """Return pairs (filter, value) of a parameter, whose forms mergekit has told apart."""
    has_filters = isinstance(value, list) and any(hasattr(one, "filter") for one in value)
    conditions = value if has_filters else [value]
    return [(getattr(c, "filter", None), getattr(c, "value", c)) for c in conditions]


def _convert_setting(parameter: Any, value: Any) -> Setting:
    def convert(inner: Any) -> Any:
        if isinstance(inner, list):
            return tuple(map(parameter.validate, inner))
        return parameter.validate(inner)

    return tuple(Entry(convert(v), f) for f, v in _list_conditions(value))


def _describe_value_problems(name: str, parameter: Any, value: Any) -> Iterator[str]:
    """Yield what mergekit refuses, or passes over, in the value of a parameter."""
    conditions = _list_conditions(value)
    if any(filter_ in (None, "*") for filter_, _ in conditions[:-1]):
        yield f"'{name}': the first filter that fits wins, so a value for all tensors stands last"
    for _, inner in conditions:
        is_list = isinstance(inner, list)
        values = inner if is_list else [inner]
        texts = list(filter(None, (describe_parameter_problem(parameter, one) for one in values)))
        yield from texts
        if not values:
            yield f"'{name}' is an empty list"
        elif is_list and not texts and isinstance(parameter.validate(inner[0]), bool | str):
            yield f"'{name}' over depth is not supported; give it by filter: [{{filter, value}}]"


def flatten(name: str, scopes: Iterable[Settings], default: Any = None) -> Setting:
    """Return a parameter's settings, nearest first, up to one that covers every tensor.

    If there are any, the `default` covers the tensors that none of them does.
    """
    entries: list[Entry] = []
    for scope in scopes:
        entries += scope.get(name, ())
        if entries and entries[-1].covers_all:
            return tuple(entries)
    if entries and default is not None:
        entries.append(Entry(default, None))
    return tuple(entries)
