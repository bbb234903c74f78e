"""Components: a name and options become a frozen dataclass; a list of them becomes a chain or a sum."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from emberge.contracts import ChainSpec, MergeStrategy, Sampler
from emberge.errors import EmbergeError, PluginError, Problem, RecipeError, closest_word, suggest
from emberge.plugins import Component, Plugins
from emberge.recipes.options import option_forms as forms
from emberge.recipes.options import values
from emberge.recipes.options.builder import BROKEN, Builder, Handler, OptionPath
from emberge.recipes.options.option_forms import (
    CONTRACTS,
    Option,
    first_option,
    kinds_of,
    options_of,
)
from emberge.recipes.options.phrases import article
from emberge.wording import plural
from emberge.yaml_nodes import (
    Fields,
    Items,
    Node,
    Scalar,
    StepUse,
    describe_node,
    node_of,
    read_yaml,
)

Built = TypeVar("Built")


class _WrittenComponent(NamedTuple):
    """A component as a recipe writes it."""

    name: str
    options: Node | None
    where: str


class _GivenOptions(NamedTuple):
    """The options that a recipe gives to one dataclass."""

    label: str
    fields: Fields
    where: str
    ready: Mapping[str, Any] = MappingProxyType({})
    """Values that a registered chain sets and that YAML cannot express."""


# ── the options of one dataclass ────────────────────────────────────────────────────────────────


def _build_record(build: Builder, form: forms.Record, node: Node, at: OptionPath) -> Any:
    label = _label_nested(at)
    named = _WrittenComponent("", node, node.where)
    return _build_dataclass(build, form.type, label, named, dataclasses.replace(at, default=None))


def _build_dataclass(
    build: Builder, owner: type, label: str, named: _WrittenComponent, at: OptionPath
) -> Any:
    """Build the dataclass of a component's or nested mapping's options; return BROKEN if it is not sound."""
    fields = _read_fields(build, [owner], label, named)
    if fields is None:
        return BROKEN
    _refuse_unknown(build, label, fields, options_of(owner))
    return _build_instance(build, owner, _GivenOptions(label, fields, named.where), at)


def _read_fields(
    build: Builder, owners: Iterable[type], label: str, named: _WrittenComponent
) -> Fields | None:
    """Return the options as a mapping; in `name: value`, the value is the class's own first option."""
    node = named.options
    if node is None:
        return Fields({}, named.where)
    if isinstance(node, Fields):
        return node
    first = next((o for o in map(first_option, owners) if o is not None), None)
    if first is None:
        build.refuse(f"{label} has no option for {describe_node(node)}", node.where)
        return None
    return Fields({first.name: node}, node.where)


def _refuse_unknown(build: Builder, label: str, given: Fields, known: Iterable[str]) -> None:
    """Note every option that is not in `known` as a problem."""
    names = list(known)
    for name in given.entries:
        if name not in names:
            hint = suggest(name, names) or (f"; it has {', '.join(names)}" if names else "")
            has = f"{label} has no option '{name}'{hint}" if names else f"{label} has no options"
            build.refuse(has, given.line(name))


def _build_instance(build: Builder, owner: type, given: _GivenOptions, at: OptionPath) -> Any:
    """Build the dataclass of the options if all of them are sound; else return BROKEN."""
    options = options_of(owner)
    values: dict[str, Any] = dict(given.ready)
    for option in options.values():
        inner = _place_option(option, given.label, at)
        if option.name in given.fields.entries:
            values[option.name] = _build_option(build, option, given.fields, inner)
        elif option.component is not None and option.name not in values:
            values[option.name] = _build_default(build, option, given.where, inner)
    misspelt = {closest_word(name, options) for name in given.fields.entries if name not in options}
    missing = [
        f"'{o.name}'"
        for o in options.values()
        if o.required and o.name not in values and o.name not in misspelt
    ]
    if missing:
        noun = "option" if len(missing) == 1 else plural("option")
        return build.refuse(f"{given.label} needs the {noun} {' and '.join(missing)}", given.where)
    all_known = all(name in options for name in given.fields.entries)
    if not all_known or any(value is BROKEN for value in values.values()):
        return BROKEN
    if _has_idle_options(build, options, values, given):
        return BROKEN
    return _call_class(build, owner, values, given)


def _has_idle_options(
    build: Builder, options: Mapping[str, Option], values: Mapping[str, Any], given: _GivenOptions
) -> bool:
    """Return whether an option was given without the option that it requires; note each such option."""
    all_values = {name: option.default for name, option in options.items()} | dict(values)
    has_idle = False
    for name in given.fields.entries:
        requires = options[name].requires
        lacking = requires.describe_missing(all_values) if requires else ""
        if lacking:
            message = (
                f"option '{name}' of {given.label} has no effect without {lacking}; leave it out"
            )
            build.refuse(message, given.fields.line(name))
            has_idle = True
    return has_idle


def _place_option(option: Option, label: str, at: OptionPath) -> OptionPath:
    return at.under(
        option.name,
        option.name,
        label=f"option '{option.name}' of {label}",
        default=None if option.required else option.default,
    )


def _label_nested(at: OptionPath) -> str:
    """Return the label of a nested mapping's options: "an entry of 'models'"."""
    name = at.label.removeprefix("option '").partition("'")[0]
    listed = at.built.rpartition(".")[2].isdecimal()
    return f"an entry of '{name}'" if listed else f"'{name}'"


def _build_option(build: Builder, option: Option, given: Fields, at: OptionPath) -> Any:
    for path in (at.built, at.written):
        build.lines.setdefault(path, given.line(option.name))
    return build.value(option.form, given.entries[option.name], at)


def _build_default(build: Builder, option: Option, where: str, at: OptionPath) -> Any:
    """Build the component that is the default of an option, with its own defaults."""
    component = option.component
    name = component if isinstance(component, str) else next(iter(component or {}))
    bare = name.rpartition(":")[2]
    if not any(component.name == bare for component in build.plugins.components):
        message = f"{at.label} would be '{name}', which no plugin gives; name another"
        message += build.plugins.blocked_hint
        return build.refuse(message, where)
    node = node_of(component, where)
    assert node is not None
    return build.value(option.form, node, at)


def _call_class(build: Builder, owner: type, values: dict[str, Any], given: _GivenOptions) -> Any:
    try:
        return owner(**values)
    except (ValueError, EmbergeError) as error:
        spoken = re.findall(r"\w+", str(error))
        named = [name for name in given.fields.entries if name in spoken]
        where = given.fields.line(named[0]) if len(named) == 1 else given.where
        return build.refuse(f"{given.label}: {error}", where)
    except Exception as error:
        raise PluginError(f"{given.where}: {given.label} cannot be made: {error!r}") from error


@dataclass(frozen=True)
class _Link:
    """A built link of a chain, and its name in messages."""

    value: Any
    label: str
    where: str


# ── one component ───────────────────────────────────────────────────────────────────────────────


def build_component(
    build: Builder, contracts: tuple[type, ...], node: Node, at: OptionPath
) -> tuple[Component, Any] | None:
    """Return the component that a node names, and its value, which may be BROKEN; None for an unknown name.

    A chain's value is a tuple of links.
    """
    named = _read_name(build, node, at)
    if named is None:
        return None
    try:
        component = build.plugins.find(named.name, *kinds_of(contracts))
    except PluginError as error:
        build.refuse(
            _describe_other_kind(build, contracts, named.name, at) or str(error), named.where
        )
        return None
    inner = at.under(named.name, entry=False, default=None)
    build.lines.setdefault(inner.written, named.where)
    if not _is_accepted(component, contracts):
        contract_names = " or a ".join(contract.__name__ for contract in contracts)
        kind = "chain" if isinstance(component.type, ChainSpec) else _name_contract(component.type)
        message = (
            f"{_label_component(component)} is a {kind}, and {at.label} takes a {contract_names}"
        )
        build.refuse(message, named.where)
        return None
    if isinstance(component.type, ChainSpec):
        return component, _build_chain(build, component, named, inner)
    value = _build_dataclass(build, component.type, _label_component(component), named, inner)
    return component, value


def _describe_other_kind(
    build: Builder, contracts: tuple[type, ...], name: str, at: OptionPath
) -> str | None:
    """Return the message for a name of another kind of component; None if no kind has the name."""
    kinds = kinds_of(contracts)
    named_kinds = [c.kind for c in build.plugins.components if name in (c.name, c.full_name)]
    if not named_kinds or set(named_kinds) & set(kinds):
        return None
    accepted = article(" or ".join(kinds))
    return f"'{name}' is {article(named_kinds[0])}, and {at.label} takes {accepted}"


def _read_name(build: Builder, node: Node, at: OptionPath) -> _WrittenComponent | None:
    if isinstance(node, Scalar) and isinstance(node.value, str) and node.value:
        return _WrittenComponent(node.value, None, node.where)
    if isinstance(node, Fields) and len(node.entries) == 1:
        ((name, options),) = node.entries.items()
        has_no_options = isinstance(options, Scalar) and options.value is None
        return _WrittenComponent(name, None if has_no_options else options, node.line(name))
    if isinstance(node, Fields) and node.entries:
        names = ", ".join(f"'{name}'" for name in node.entries)
        message = (
            f"{at.label} takes one component, not {names}; write `name: {{options}}`, or a list"
        )
        build.refuse(message, node.where)
    elif not isinstance(node, StepUse) or node.group:
        message = f"{at.label} takes a component, `name` or `name: {{options}}`, not {describe_node(node)}"
        build.refuse(message, node.where)
    return None


def _name_contract(owner: type) -> str:
    return next(class_.__name__ for class_ in owner.__mro__ if class_ in CONTRACTS)


def _is_accepted(component: Component, contracts: tuple[type, ...]) -> bool:
    if isinstance(component.type, ChainSpec):
        return any(issubclass(MergeStrategy, contract) for contract in contracts)
    return issubclass(component.type, contracts)


def _label_component(component: Component) -> str:
    return f"{component.kind} '{component.name}'"


def _build_part(build: Builder, form: forms.Part, node: Node, at: OptionPath) -> Any:
    built = build_component(build, form.contracts, node, at)
    if built is None:
        return BROKEN
    component, value = built
    if not isinstance(component.type, ChainSpec) or value is BROKEN:
        return value
    if len(value) > 1:
        message = f"{_label_component(component)} is a chain of {len(value)} links, and {at.label} takes one"
        return build.refuse(message, node.where)
    return value[0]


# ── chains and sums ─────────────────────────────────────────────────────────────────────────────


def _build_chain(
    build: Builder, component: Component, named: _WrittenComponent, at: OptionPath
) -> Any:
    """Build the links of a registered chain; each gets its own options, and links may share an option."""
    spec: ChainSpec = component.type
    label = _label_component(component)
    fields = _read_fields(build, spec.links, label, named)
    if fields is None:
        return BROKEN
    option_names = dict.fromkeys(name for link in spec.links for name in options_of(link))
    _refuse_unknown(build, label, fields, option_names)
    links = []
    for index, link in enumerate(spec.links):
        options = _select_options(spec, link, _GivenOptions(label, fields, named.where))
        built = _build_instance(build, link, options, _shift_place(at, index))
        links.append(built if built is BROKEN else built.as_link_of(component.name))
    all_known = all(name in option_names for name in fields.entries)
    return tuple(links) if all_known and all(link is not BROKEN for link in links) else BROKEN


def _select_options(spec: ChainSpec, link: type, given: _GivenOptions) -> _GivenOptions:
    """Return the given options that belong to a link, and the chain's defaults for its other options."""
    link_options = options_of(link)
    entries = {name: node for name, node in given.fields.entries.items() if name in link_options}
    chain_values: dict[str, Any] = {}
    for name, value in spec.defaults.items():
        if name in link_options and name not in entries:
            node = node_of(value, given.where)
            if node is None:
                chain_values[name] = value
            else:
                entries[name] = node
    fields = Fields(entries, given.fields.where, given.fields.lines)
    return given._replace(fields=fields, ready=chain_values)


def _shift_place(at: OptionPath, by: int) -> OptionPath:
    """Return the path of the link that is `by` places later in the same list."""
    path, _, index = at.built.rpartition(".")
    if not index.isdigit():
        return at
    return dataclasses.replace(at, built=f"{path}.{int(index) + by}")


def _build_parts(build: Builder, form: forms.Parts, node: Node, at: OptionPath) -> Any:
    nodes = _list_nodes(form, node)
    links: list[_Link] = []
    all_built = True
    for index, item in enumerate(nodes):
        inner = at.under(index if isinstance(node, Items) else None, len(links))
        built = build_component(build, form.contracts, item, inner)
        if built is None or built[1] is BROKEN:
            all_built = False
            continue
        component, value = built
        where = _find_name_place(item)
        values = value if isinstance(component.type, ChainSpec) else (value,)
        links += [_Link(part, _label_component(component), where) for part in values]
    if not nodes:
        return build.refuse(f"{at.label} is an empty list", node.where)
    if all_built and not _check_order(build, form, links):
        return BROKEN
    return tuple(link.value for link in links) if all_built else BROKEN


def _list_nodes(form: forms.Parts, node: Node) -> tuple[Node, ...]:
    """Return the nodes of a list's components; an unordered list may be a mapping of names to options."""
    if isinstance(node, Items):
        return node.items
    if isinstance(node, Fields) and len(node.entries) > 1 and not form.ordered:
        return tuple(
            Fields({name: value}, node.line(name), node.lines)
            for name, value in node.entries.items()
        )
    return (node,)


def _find_name_place(node: Node) -> str:
    if isinstance(node, Fields) and node.entries:
        return node.line(next(iter(node.entries)))
    return node.where


def _check_order(build: Builder, form: forms.Parts, links: list[_Link]) -> bool:
    """Return whether only the last link merges or makes batches; note each link that is out of order."""
    before = len(build.problems)
    if form.chain:
        _check_stages(build, links)
    elif Sampler in form.contracts:
        _check_samplers(build, links)
    return len(build.problems) == before


def _check_stages(build: Builder, links: list[_Link]) -> None:
    *before, last = links
    for link in before:
        if isinstance(link.value, MergeStrategy):
            build.refuse(f"{link.label} ends a chain and can only stand last", link.where)
    if not isinstance(last.value, MergeStrategy):
        build.refuse(f"{last.label} cannot end a chain; let a merge strategy follow it", last.where)


def _check_samplers(build: Builder, links: list[_Link]) -> None:
    *before, last = links
    for link in before:
        if _overrides_batches(link.value) and type(link.value).select is Sampler.select:
            build.refuse(f"{link.label} makes batches and can only stand last", link.where)
    if not _overrides_batches(last.value):
        message = f"{last.label} only selects; end the chain with a sampler that makes batches"
        build.refuse(message, last.where)


def _overrides_batches(sampler: Sampler) -> bool:
    return type(sampler).batches is not Sampler.batches


HANDLERS: Mapping[type, Handler] = {
    **values.HANDLERS,
    forms.Record: _build_record,
    forms.Part: _build_part,
    forms.Parts: _build_parts,
}
"""The function that builds a value, by the value's form."""


def read_component(text: str, contract: type[Built], plugins: Plugins, place: str) -> Built:
    """Build the component of one contract that a text names, `name` or `name: {options}`; return it.

    Raises:
        RecipeError: if the text names no component, or an option is wrong; the message names `place`.
    """
    problems: list[Problem] = []
    node = read_yaml(text, lambda _: place, problems, what=f"the {kinds_of((contract,))[0]}")
    if node is None or problems:
        kind = kinds_of((contract,))[0]
        raise RecipeError(problems or f"{place} needs a name; `emberge list --kind {kind}`")
    build = Builder(HANDLERS, plugins, Path(), {}, {})
    built = build_component(build, (contract,), node, OptionPath(f"option '{place}'"))
    if build.problems or built is None or built[1] is BROKEN:
        raise RecipeError(build.problems)
    component: Built = built[1]
    return component
