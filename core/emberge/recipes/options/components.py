"""Components: a name and options become a frozen dataclass; a list of them becomes a chain or a sum."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from emberge.contracts import ChainSpec, MergeStrategy, Sampler
from emberge.errors import PluginError
from emberge.plugins import Component
from emberge.recipes.options import field_types as forms
from emberge.recipes.options.builder import BROKEN, Builder, Handler, OptionPath
from emberge.recipes.options.construct import (
    GivenOptions,
    Named,
    construct,
    fields_of,
    record_value,
    refuse_unknown,
)
from emberge.recipes.options.field_types import CONTRACTS, kinds_of
from emberge.recipes.options.fields import options_of
from emberge.recipes.options.phrases import article
from emberge.yaml_nodes import Fields, Items, Node, Scalar, StepUse, node_of, words


@dataclass(frozen=True)
class _Link:
    """A built link of a chain, and what to call it in messages."""

    value: Any
    label: str
    where: str


# ── one component ───────────────────────────────────────────────────────────────────────────────


def build_component(
    build: Builder, contracts: tuple[type, ...], node: Node, at: OptionPath
) -> tuple[Component, Any] | None:
    """Return the component that a node names and its value, which may be BROKEN; None if there is none.

    A chain's value is a tuple of links.
    """
    named = _named(build, node, at)
    if named is None:
        return None
    try:
        found = build.plugins.find(named.name, *kinds_of(contracts))
    except PluginError as error:
        build.refuse(_other_kind(build, contracts, named.name, at) or str(error), named.where)
        return None
    inner = at.under(named.name, entry=False, default=None)
    build.lines.setdefault(inner.written, named.where)
    if not _accepted(found, contracts):
        wanted = " or a ".join(contract.__name__ for contract in contracts)
        what = "chain" if isinstance(found.type, ChainSpec) else _contract(found.type)
        message = f"{_label(found)} is a {what}, and {at.label} takes a {wanted}"
        build.refuse(message, named.where)
        return None
    if isinstance(found.type, ChainSpec):
        return found, _chain(build, found, named, inner)
    value = record_value(build, found.type, _label(found), named, inner)
    return found, value


def _other_kind(
    build: Builder, contracts: tuple[type, ...], name: str, at: OptionPath
) -> str | None:
    """Return the message for a name that another kind of component has; None if none has it."""
    kinds = kinds_of(contracts)
    known = [c.kind for c in build.plugins.components if name in (c.name, c.full_name)]
    if not known or set(known) & set(kinds):
        return None
    wanted = article(" or ".join(kinds))
    return f"'{name}' is {article(known[0])}, and {at.label} takes {wanted}"


def _named(build: Builder, node: Node, at: OptionPath) -> Named | None:
    if isinstance(node, Scalar) and isinstance(node.value, str) and node.value:
        return Named(node.value, None, node.where)
    if isinstance(node, Fields) and len(node.entries) == 1:
        ((name, options),) = node.entries.items()
        nothing = isinstance(options, Scalar) and options.value is None
        return Named(name, None if nothing else options, node.line(name))
    if isinstance(node, Fields) and node.entries:
        names = ", ".join(f"'{name}'" for name in node.entries)
        message = (
            f"{at.label} takes one component, not {names}; write `name: {{options}}`, or a list"
        )
        build.refuse(message, node.where)
    elif not isinstance(node, StepUse) or node.group:
        message = f"{at.label} takes a component, `name` or `name: {{options}}`, not {words(node)}"
        build.refuse(message, node.where)
    return None


def _contract(owner: type) -> str:
    return next(one.__name__ for one in owner.__mro__ if one in CONTRACTS)


def _accepted(found: Component, contracts: tuple[type, ...]) -> bool:
    if isinstance(found.type, ChainSpec):
        return any(issubclass(MergeStrategy, contract) for contract in contracts)
    return issubclass(found.type, contracts)


def _label(found: Component) -> str:
    return f"{found.kind} '{found.name}'"


def _part(build: Builder, form: forms.Part, node: Node, at: OptionPath) -> Any:
    built = build_component(build, form.contracts, node, at)
    if built is None:
        return BROKEN
    found, value = built
    if not isinstance(found.type, ChainSpec) or value is BROKEN:
        return value
    if len(value) > 1:
        message = f"{_label(found)} is a chain of {len(value)} links, and {at.label} takes one"
        return build.refuse(message, node.where)
    return value[0]


# ── chains and sums ─────────────────────────────────────────────────────────────────────────────


def _chain(build: Builder, found: Component, named: Named, at: OptionPath) -> Any:
    """Build the links of a registered chain; each takes its own options, and several may share one."""
    spec: ChainSpec = found.type
    label = _label(found)
    fields = fields_of(build, spec.links, label, named)
    if fields is None:
        return BROKEN
    union = dict.fromkeys(name for link in spec.links for name in options_of(link))
    refuse_unknown(build, label, fields, union)
    links = []
    for index, link in enumerate(spec.links):
        given = _of_link(spec, link, GivenOptions(label, fields, named.where))
        links.append(construct(build, link, given, _moved(at, index)))
    known = all(name in union for name in fields.entries)
    return tuple(links) if known and all(link is not BROKEN for link in links) else BROKEN


def _of_link(spec: ChainSpec, link: type, given: GivenOptions) -> GivenOptions:
    """Return the options that a link has, with the chain's defaults where the user gave nothing."""
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


def _moved(at: OptionPath, by: int) -> OptionPath:
    """Return the place of a later link of the same list."""
    path, _, index = at.built.rpartition(".")
    if not index.isdigit():
        return at
    return dataclasses.replace(at, built=f"{path}.{int(index) + by}")


def _parts(build: Builder, form: forms.Parts, node: Node, at: OptionPath) -> Any:
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
        return build.refuse(f"{at.label} is an empty list", node.where)
    if sound and not _in_order(build, form, links):
        return BROKEN
    return tuple(link.value for link in links) if sound else BROKEN


def _listed(form: forms.Parts, node: Node) -> tuple[Node, ...]:
    """Return the nodes of a list's components; without an order it may be a mapping of names to options."""
    if isinstance(node, Items):
        return node.items
    if isinstance(node, Fields) and len(node.entries) > 1 and not form.ordered:
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
    """Return whether the order of links is sound: only the last one merges, or makes batches."""
    before = len(build.problems)
    if form.chain:
        _stages_in_order(build, links)
    elif Sampler in form.contracts:
        _samplers_in_order(build, links)
    return len(build.problems) == before


def _stages_in_order(build: Builder, links: list[_Link]) -> None:
    *before, last = links
    for link in before:
        if isinstance(link.value, MergeStrategy):
            build.refuse(f"{link.label} ends a chain and can only stand last", link.where)
    if not isinstance(last.value, MergeStrategy):
        build.refuse(f"{last.label} cannot end a chain; let a merge strategy follow it", last.where)


def _samplers_in_order(build: Builder, links: list[_Link]) -> None:
    *before, last = links
    for link in before:
        if _groups(link.value) and type(link.value).select is Sampler.select:
            build.refuse(f"{link.label} makes batches and can only stand last", link.where)
    if not _groups(last.value):
        message = f"{last.label} only selects; end the chain with a sampler that makes batches"
        build.refuse(message, last.where)


def _groups(sampler: Sampler) -> bool:
    return type(sampler).batches is not Sampler.batches


HANDLERS: Mapping[type, Handler] = {
    forms.Part: _part,
    forms.Parts: _parts,
}
