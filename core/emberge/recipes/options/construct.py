"""Options become a frozen dataclass; a missing, unknown or unsound one becomes a problem."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from emberge.errors import EmbergeError, PluginError, suggest
from emberge.recipes.options import field_types as forms
from emberge.recipes.options.builder import BROKEN, Builder, Handler, OptionPath
from emberge.recipes.options.fields import Option, first_option, options_of
from emberge.wording import plural
from emberge.yaml_nodes import Fields, Node, node_of, words


class Named(NamedTuple):
    """A component as a recipe writes it."""

    name: str
    options: Node | None
    where: str


class GivenOptions(NamedTuple):
    """The options that a recipe gives to one dataclass."""

    label: str
    fields: Fields
    where: str
    ready: Mapping[str, Any] = MappingProxyType({})
    """Values that a registered chain sets and that YAML has no form for."""


def _record(build: Builder, form: forms.Record, node: Node, at: OptionPath) -> Any:
    label = _inside(at)
    named = Named("", node, node.where)
    return record_value(build, form.type, label, named, dataclasses.replace(at, default=None))


def record_value(build: Builder, owner: type, label: str, named: Named, at: OptionPath) -> Any:
    """Build the dataclass of a component's or nested mapping's options; return BROKEN if it is not sound."""
    fields = fields_of(build, [owner], label, named)
    if fields is None:
        return BROKEN
    refuse_unknown(build, label, fields, options_of(owner))
    return construct(build, owner, GivenOptions(label, fields, named.where), at)


def fields_of(build: Builder, owners: Iterable[type], label: str, named: Named) -> Fields | None:
    """Return the options as a mapping; the value of `name: value` is the first option of the class itself."""
    node = named.options
    if node is None:
        return Fields({}, named.where)
    if isinstance(node, Fields):
        return node
    first = next((o for o in map(first_option, owners) if o is not None), None)
    if first is None:
        build.refuse(f"{label} has no option for {words(node)}", node.where)
        return None
    return Fields({first.name: node}, node.where)


def refuse_unknown(build: Builder, label: str, given: Fields, known: Iterable[str]) -> None:
    """Note every option that is not among the known ones."""
    names = list(known)
    for name in given.entries:
        if name not in names:
            hint = suggest(name, names) or (f"; it has {', '.join(names)}" if names else "")
            has = f"{label} has no option '{name}'{hint}" if names else f"{label} has no options"
            build.refuse(has, given.line(name))


def construct(build: Builder, owner: type, given: GivenOptions, at: OptionPath) -> Any:
    """Build the dataclass of the options once all of them are sound; else return BROKEN."""
    options = options_of(owner)
    values: dict[str, Any] = dict(given.ready)
    for option in options.values():
        inner = _option_at(option, given.label, at)
        if option.name in given.fields.entries:
            values[option.name] = _option_value(build, option, given.fields, inner)
        elif option.component is not None and option.name not in values:
            values[option.name] = _default_value(build, option, given.where, inner)
    missing = [f"'{o.name}'" for o in options.values() if o.required and o.name not in values]
    if missing:
        noun = "option" if len(missing) == 1 else plural("option")
        return build.refuse(f"{given.label} needs the {noun} {' and '.join(missing)}", given.where)
    sound = all(name in options for name in given.fields.entries)
    if not sound or any(value is BROKEN for value in values.values()):
        return BROKEN
    if _has_idle_options(build, options, values, given):
        return BROKEN
    return _instantiate(build, owner, values, given)


def _has_idle_options(
    build: Builder, options: Mapping[str, Option], values: Mapping[str, Any], given: GivenOptions
) -> bool:
    """Note every option that is given and has no effect, as the one that it requires is not."""
    every = {name: one.default for name, one in options.items()} | dict(values)
    idle = False
    for name in given.fields.entries:
        requires = options[name].requires
        lacking = requires.lacking(every) if requires else ""
        if lacking:
            message = (
                f"option '{name}' of {given.label} has no effect without {lacking}; leave it out"
            )
            build.refuse(message, given.fields.line(name))
            idle = True
    return idle


def _option_at(option: Option, label: str, at: OptionPath) -> OptionPath:
    return at.under(
        option.name,
        option.name,
        label=f"option '{option.name}' of {label}",
        default=None if option.required else option.default,
    )


def _inside(at: OptionPath) -> str:
    """Return the label of a nested mapping's options: "an entry of 'models'"."""
    name = at.label.removeprefix("option '").partition("'")[0]
    listed = at.built.rpartition(".")[2].isdecimal()
    return f"an entry of '{name}'" if listed else f"'{name}'"


def _option_value(build: Builder, option: Option, given: Fields, at: OptionPath) -> Any:
    for path in (at.built, at.written):
        build.lines.setdefault(path, given.line(option.name))
    return build.value(option.form, given.entries[option.name], at)


def _default_value(build: Builder, option: Option, where: str, at: OptionPath) -> Any:
    """Build the component that is the default of an option, with its own defaults."""
    component = option.component
    name = component if isinstance(component, str) else next(iter(component or {}))
    bare = name.rpartition(":")[2]
    if not any(component.name == bare for component in build.plugins.components):
        message = f"{at.label} would be '{name}', which no plugin gives; name another"
        message += build.plugins.left_out
        return build.refuse(message, where)
    node = node_of(component, where)
    assert node is not None
    return build.value(option.form, node, at)


def _instantiate(build: Builder, owner: type, values: dict[str, Any], given: GivenOptions) -> Any:
    try:
        return owner(**values)
    except (ValueError, EmbergeError) as error:
        spoken = re.findall(r"\w+", str(error))
        named = [name for name in given.fields.entries if name in spoken]
        place = given.fields.line(named[0]) if len(named) == 1 else given.where
        return build.refuse(f"{given.label}: {error}", place)
    except Exception as error:
        raise PluginError(f"{given.where}: {given.label} cannot be made: {error!r}") from error


HANDLERS: Mapping[type, Handler] = {forms.Record: _record}
