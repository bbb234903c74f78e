"""Components: a name and options become a frozen dataclass; a list of them becomes a chain or a sum."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from emberge.contracts.merge import ChainSpec, MergeStrategy
from emberge.contracts.sampler import Sampler
from emberge.errors import EmbergeError, PluginError, suggest
from emberge.plugins import Component
from emberge.recipes import forms
from emberge.recipes.build import BROKEN, At, Builder, Handler
from emberge.recipes.forms import CONTRACTS, kinds_of
from emberge.recipes.nodes import Fields, Items, Node, Scalar, node_of, words
from emberge.recipes.options import Option, first_option, options_of

__all__ = ["HANDLERS", "build_component"]


class _Named(NamedTuple):
    """A component as a recipe writes it."""

    name: str
    options: Node | None
    where: str


@dataclass(frozen=True)
class _Link:
    """A built link of a chain, and what to call it in messages."""

    value: Any
    label: str
    where: str


# ── one component ───────────────────────────────────────────────────────────────────────────────


def build_component(
    build: Builder, contracts: tuple[type, ...], node: Node, at: At
) -> tuple[Component, Any] | None:
    """The component that a node names and its value, which may be BROKEN; None if there is none.

    A chain's value is a tuple of links.
    """
    named = _named(build, node, at)
    if named is None:
        return None
    try:
        found = build.plugins.find(named.name, *kinds_of(contracts))
    except PluginError as error:
        build.fault(str(error), named.where)
        return None
    inner = at.under(named.name, entry=False, default=None)
    build.lines.setdefault(inner.written, named.where)
    if not _accepted(found, contracts):
        wanted = " or a ".join(contract.__name__ for contract in contracts)
        what = "chain" if isinstance(found.type, ChainSpec) else _contract(found.type)
        message = f"{_label(found)} is a {what}, and {at.label} takes a {wanted}"
        build.fault(message, named.where)
        return None
    if isinstance(found.type, ChainSpec):
        return found, _chain(build, found, named, inner)
    value = _record_value(build, found.type, _label(found), named, inner)
    return found, value


def _named(build: Builder, node: Node, at: At) -> _Named | None:
    if isinstance(node, Scalar) and isinstance(node.value, str) and node.value:
        return _Named(node.value, None, node.where)
    if isinstance(node, Fields) and len(node.entries) == 1:
        ((name, options),) = node.entries.items()
        nothing = isinstance(options, Scalar) and options.value is None
        return _Named(name, None if nothing else options, node.line(name))
    if isinstance(node, Fields) and node.entries:
        names = ", ".join(f"'{name}'" for name in node.entries)
        said = f"{at.label} takes one component, not {names}; write `name: {{options}}`, or a list"
        build.fault(said, node.where)
    else:
        said = f"{at.label} takes a component, `name` or `name: {{options}}`, not {words(node)}"
        build.fault(said, node.where)
    return None


def _contract(owner: type) -> str:
    return next(one.__name__ for one in owner.__mro__ if one in CONTRACTS)


def _accepted(found: Component, contracts: tuple[type, ...]) -> bool:
    if isinstance(found.type, ChainSpec):
        return any(issubclass(MergeStrategy, contract) for contract in contracts)
    return issubclass(found.type, contracts)


def _label(found: Component) -> str:
    return f"{found.kind} '{found.name}'"


def _part(build: Builder, form: forms.Part, node: Node, at: At) -> Any:
    built = build_component(build, form.contracts, node, at)
    if built is None:
        return BROKEN
    found, value = built
    if not isinstance(found.type, ChainSpec) or value is BROKEN:
        return value
    if len(value) > 1:
        said = f"{_label(found)} is a chain of {len(value)} links, and {at.label} takes one"
        return build.fault(said, node.where)
    return value[0]


# ── options ─────────────────────────────────────────────────────────────────────────────────────


class _Given(NamedTuple):
    """What a recipe gives to one dataclass."""

    label: str
    fields: Fields
    where: str
    ready: Mapping[str, Any] = MappingProxyType({})
    """Values that a registered chain sets and YAML cannot say."""


def _record(build: Builder, form: forms.Record, node: Node, at: At) -> Any:
    label = _inside(at.label, at.entry)
    named = _Named("", node, node.where)
    return _record_value(build, form.type, label, named, dataclasses.replace(at, default=None))


def _record_value(build: Builder, owner: type, label: str, named: _Named, at: At) -> Any:
    fields = _fields(build, [owner], label, named)
    if fields is None:
        return BROKEN
    _refuse_unknown(build, label, fields, options_of(owner))
    return _construct(build, owner, _Given(label, fields, named.where), at)


def _fields(build: Builder, owners: Iterable[type], label: str, named: _Named) -> Fields | None:
    """The options as a mapping: `name: value` is the first option that the class itself declares."""
    node = named.options
    if node is None:
        return Fields({}, named.where)
    if isinstance(node, Fields):
        return node
    first = next((o for o in map(first_option, owners) if o is not None), None)
    if first is None:
        build.fault(f"{label} has no option for {words(node)}", node.where)
        return None
    return Fields({first.name: node}, node.where)


def _refuse_unknown(build: Builder, label: str, given: Fields, known: Iterable[str]) -> None:
    names = list(known)
    for name in given.entries:
        if name not in names:
            hint = suggest(name, names) or (f"; it has {', '.join(names)}" if names else "")
            has = f"{label} has no option '{name}'{hint}" if names else f"{label} has no options"
            build.fault(has, given.line(name))


def _construct(build: Builder, owner: type, given: _Given, at: At) -> Any:
    """The dataclass of the options, once all of them are sound."""
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
        noun = "option" if len(missing) == 1 else "options"
        return build.fault(f"{given.label} needs the {noun} {' and '.join(missing)}", given.where)
    sound = all(name in options for name in given.fields.entries)
    if not sound or any(value is BROKEN for value in values.values()):
        return BROKEN
    return _made(build, owner, values, given)


def _option_at(option: Option, label: str, at: At) -> At:
    return at.under(
        option.name,
        option.name,
        label=f"option '{option.name}' of {label}",
        default=None if option.required else option.default,
    )


def _inside(label: str, entry: bool) -> str:
    """What the options of a nested mapping belong to: "an entry of 'models'"."""
    name = label.removeprefix("option '").partition("'")[0]
    return f"an entry of '{name}'" if entry else f"'{name}'"


def _option_value(build: Builder, option: Option, given: Fields, at: At) -> Any:
    value = build.value(option.form, given.entries[option.name], at)
    build.lines[at.written] = build.lines[at.built] = given.line(option.name)
    return value


def _default_value(build: Builder, option: Option, where: str, at: At) -> Any:
    """The component that stands where the option is left out, with its own defaults."""
    name = str(option.component)
    bare = name.rpartition(":")[2]
    if not any(component.name == bare for component in build.plugins.components):
        said = f"{at.label} would be '{name}', which no plugin gives; name another"
        return build.fault(said, where)
    return build.value(option.form, Scalar(name, name, where), at)


def _made(build: Builder, owner: type, values: dict[str, Any], given: _Given) -> Any:
    try:
        return owner(**values)
    except (ValueError, EmbergeError) as error:
        spoken = re.findall(r"\w+", str(error))
        named = [name for name in given.fields.entries if name in spoken]
        place = given.fields.line(named[0]) if len(named) == 1 else given.where
        return build.fault(f"{given.label}: {error}", place)
    except Exception as error:
        raise PluginError(f"{given.where}: {given.label} cannot be made: {error!r}") from error


# ── chains and sums ─────────────────────────────────────────────────────────────────────────────


def _chain(build: Builder, found: Component, named: _Named, at: At) -> Any:
    """The links of a registered chain; each takes its own of the options, some may share one."""
    spec: ChainSpec = found.type
    label = _label(found)
    fields = _fields(build, spec.links, label, named)
    if fields is None:
        return BROKEN
    union = dict.fromkeys(name for link in spec.links for name in options_of(link))
    _refuse_unknown(build, label, fields, union)
    links = []
    for index, link in enumerate(spec.links):
        given = _of_link(spec, link, _Given(label, fields, named.where))
        links.append(_construct(build, link, given, _moved(at, index)))
    known = all(name in union for name in fields.entries)
    return tuple(links) if known and all(link is not BROKEN for link in links) else BROKEN


def _of_link(spec: ChainSpec, link: type, given: _Given) -> _Given:
    """The link's own part of the options, and of the chain's defaults where the user gave nothing."""
    own = options_of(link)
    entries = {name: node for name, node in given.fields.entries.items() if name in own}
    ready: dict[str, Any] = {}
    for name, value in spec.defaults.items():
        if name in own and name not in entries:
            node = node_of(value, given.where)
            if node is None:
                ready[name] = value
            else:
                entries[name] = node
    fields = Fields(entries, given.fields.where, given.fields.lines)
    return given._replace(fields=fields, ready=ready)


def _moved(at: At, by: int) -> At:
    """The place of a later link of the same list."""
    path, _, index = at.built.rpartition(".")
    if not index.isdigit():
        return at
    return dataclasses.replace(at, built=f"{path}.{int(index) + by}")


def _parts(build: Builder, form: forms.Parts, node: Node, at: At) -> Any:
    nodes = _listed(form, node)
    links: list[_Link] = []
    sound = True
    for index, item in enumerate(nodes):
        inner = at.under(index if isinstance(node, Items) else None, len(links))
        built = build_component(build, form.contracts, item, inner)
        if built is None or built[1] is BROKEN:
            sound = False
            continue
        found, value = built
        where = _named_where(item)
        values = value if isinstance(found.type, ChainSpec) else (value,)
        links += [_Link(one, _label(found), where) for one in values]
    if not nodes:
        return build.fault(f"{at.label} is an empty list", node.where)
    if sound and not _in_order(build, form, links):
        return BROKEN
    return tuple(link.value for link in links) if sound else BROKEN


def _listed(form: forms.Parts, node: Node) -> tuple[Node, ...]:
    """The components of a list; those without an order may be a mapping of names to options."""
    if isinstance(node, Items):
        return node.items
    ordered = form.chain or Sampler in form.contracts
    if isinstance(node, Fields) and len(node.entries) > 1 and not ordered:
        return tuple(
            Fields({name: value}, node.line(name), node.lines)
            for name, value in node.entries.items()
        )
    return (node,)


def _named_where(node: Node) -> str:
    if isinstance(node, Fields) and node.entries:
        return node.line(next(iter(node.entries)))
    return node.where


def _in_order(build: Builder, form: forms.Parts, links: list[_Link]) -> bool:
    """Whether the last link finishes what the others prepare."""
    faults = len(build.problems)
    if form.chain:
        _stages_in_order(build, links)
    elif Sampler in form.contracts:
        _samplers_in_order(build, links)
    return len(build.problems) == faults


def _stages_in_order(build: Builder, links: list[_Link]) -> None:
    *before, last = links
    for link in before:
        if isinstance(link.value, MergeStrategy):
            build.fault(f"{link.label} ends a chain and can only stand last", link.where)
    if not isinstance(last.value, MergeStrategy):
        build.fault(f"{last.label} cannot end a chain; let a merge strategy follow it", last.where)


def _samplers_in_order(build: Builder, links: list[_Link]) -> None:
    *before, last = links
    for link in before:
        if _groups(link.value) and type(link.value).select is Sampler.select:
            build.fault(f"{link.label} makes batches and can only stand last", link.where)
    if not _groups(last.value):
        said = f"{last.label} only selects; end the chain with a sampler that makes batches"
        build.fault(said, last.where)


def _groups(sampler: Sampler) -> bool:
    return type(sampler).batches is not Sampler.batches


HANDLERS: Mapping[type, Handler] = {
    forms.Part: _part,
    forms.Parts: _parts,
    forms.Record: _record,
}
