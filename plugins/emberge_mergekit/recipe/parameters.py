"""Parameters of a config: values by filter and over depth, and the order in which settings apply.

mergekit reads a source's own parameters first, then the parameters of its slice, its module and the config.
In each of them it uses the first filter that matches. One list of all settings in this order has the same
meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from emberge import suggest

from emberge_mergekit.config.reading import ConfigValue, Faults
from emberge_mergekit.methods import Method, Parameter

# It only saves memory in mergekit, and configs set it even for methods that do not have it.
HARMLESS = "int8_mask"
NONE = ConfigValue(None, 1, "nothing")
Scalar = bool | int | float | str


@dataclass(frozen=True)
class Entry:
    """One value, or a list of values over depth, for the tensors whose name contains `filter`."""

    value: Scalar | tuple[Scalar, ...]
    filter: str | None
    line: int

    @property
    def all(self) -> bool:
        """True for a setting of every tensor."""
        return self.filter in (None, "*")


Setting = tuple[Entry, ...]


@dataclass(frozen=True)
class Parameters:
    """Settings of one `parameters` mapping by name, with the line of each."""

    settings: Mapping[str, Setting]
    lines: Mapping[str, int]


def read_parameters(entry: ConfigValue, faults: Faults) -> Parameters:
    """Return the settings of one `parameters` mapping, and report its problems."""
    if entry.value is None:
        return Parameters({}, {})
    if not isinstance(entry.value, dict):
        faults.add(entry.line, f"'parameters' is a mapping of names to values, not {entry.words}")
        return Parameters({}, {})
    settings = {name: _read_setting(value, faults) for name, value in entry.entries.items()}
    lines = {name: value.line for name, value in entry.entries.items()}
    return Parameters(settings, lines)


def _read_setting(value: ConfigValue, faults: Faults) -> Setting:
    if isinstance(value.value, list) and any(isinstance(i.value, dict) for i in value.value):
        entries = [_read_entry(item, faults) for item in value.value]
    elif isinstance(value.value, dict):
        entries = [_read_entry(value, faults)]
    else:
        entries = [_read_value(value, None, value.line, faults)]
    return _cut_unreachable(tuple(e for e in entries if e is not None), faults)


def _cut_unreachable(setting: Setting, faults: Faults) -> Setting:
    for entry in setting[:-1]:
        if entry.all:
            message = "the first filter that fits wins, so a value for all tensors stands last"
            faults.add(entry.line, message)
            return setting[: setting.index(entry) + 1]
    return setting


def _read_entry(entry: ConfigValue, faults: Faults) -> Entry | None:
    if not isinstance(entry.value, dict):
        faults.add(entry.line, f"{entry.label}: either all entries have a filter, or none")
        return None
    entry.refuse_unknown(("filter", "value"), faults)
    filter_ = entry.entries.get("filter", NONE)
    if filter_.value is not None and (not isinstance(filter_.value, str) or not filter_.value):
        faults.add(filter_.line, f"a filter is a part of a tensor's name, not {filter_.words}")
        return None
    if "value" not in entry.entries:
        faults.add(entry.line, f"{entry.label} needs a 'value'")
        return None
    return _read_value(entry.entries["value"], filter_.value, entry.line, faults)


def _read_value(value: ConfigValue, filter_: str | None, line: int, faults: Faults) -> Entry | None:
    if isinstance(value.value, bool | int | float | str):
        return Entry(value.value, filter_, line)
    items = value.value if isinstance(value.value, list) else []
    if not items or not all(isinstance(item.value, bool | int | float | str) for item in items):
        description = "an empty list" if value.value == [] else value.words
        faults.add(
            value.line, f"{value.label} takes a value or a list over depth, not {description}"
        )
        return None
    return Entry(tuple(item.value for item in items), filter_, line)


def flatten(name: str, scopes: Iterable[Parameters], default: Scalar | None) -> Setting:
    """Return a parameter's settings from all scopes, nearest first, up to one that covers every tensor."""
    entries: list[Entry] = []
    for scope in scopes:
        entries += scope.settings.get(name, ())
        if entries and entries[-1].all:
            return tuple(entries)
    if default is not None:
        entries.append(Entry(default, None, entries[-1].line if entries else 1))
    return tuple(entries)


def require_method(
    method: Method, parameters: Parameters, faults: Faults, *, beside: bool
) -> Parameters:
    """Return the parameters converted to the types that the method declares; report unknown ones.

    With `beside` the parameters belong to one model, for which mergekit reads no parameter of the whole
    merge.
    """
    settings: dict[str, Setting] = {}
    for name, setting in parameters.settings.items():
        line, declared = parameters.lines[name], method.parameters.get(name)
        if name == HARMLESS:
            settings[name] = setting
        elif declared is None:
            hint = suggest(name, method.parameters)
            hint = hint or f"; it has {', '.join(method.parameters) or 'none'}"
            faults.add(line, f"merge method '{method.name}' has no parameter '{name}'{hint}")
        elif beside and declared.scope == "shared":
            faults.add(
                line,
                f"'{name}' is one for the whole merge and is not read beside a model; move it to "
                "'parameters' of the config or of the slice",
            )
        else:
            settings[name] = tuple(
                _convert_entry(name, declared, entry, faults) for entry in setting
            )
    return Parameters(settings, parameters.lines)


def _convert_entry(name: str, declared: Parameter, entry: Entry, faults: Faults) -> Entry:
    is_list = isinstance(entry.value, tuple)
    values = entry.value if isinstance(entry.value, tuple) else (entry.value,)
    if is_list and declared.kind in ("bool", "str"):
        message = f"'{name}' over depth is not supported; give it by filter: [{{filter, value}}]"
        faults.add(entry.line, message)
    typed = [_convert_value(declared.kind, value) for value in values]
    for value, converted in zip(values, typed, strict=True):
        if converted is None:
            words = {"bool": "true or false", "int": "a whole number", "float": "a number"}
            message = f"'{name}' takes {words.get(declared.kind, 'a text')}, not {value!r}"
            faults.add(entry.line, message)
    valid_values = tuple(v for v in typed if v is not None)
    return Entry(valid_values if is_list else (valid_values or (0.0,))[0], entry.filter, entry.line)


_TRUE = ("true", "yes", "on", "y", "t", "1")
_FALSE = ("false", "no", "off", "n", "f", "0")


def _convert_value(kind: str, value: Scalar) -> Scalar | None:
    """Return the value converted to the kind, or None; YAML 1.1 reads 1e-5 as a text, so texts are parsed."""
    if kind == "str":
        return value if isinstance(value, str) else None
    if kind == "bool":
        return _convert_to_bool(value)
    number = _convert_to_number(value)
    if number is None or kind == "float":
        return number
    return int(number) if number == int(number) else None


def _convert_to_bool(value: Scalar) -> bool | None:
    if isinstance(value, str):
        word = value.lower()
        return word in _TRUE if word in _TRUE or word in _FALSE else None
    return bool(value) if value in (0, 1) else None


def _convert_to_number(value: Scalar) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    finite = number - number == 0.0
    return (value if isinstance(value, int) else number) if finite else None
