"""Components from YAML: a name and options become a frozen dataclass, a list of them a chain or a sum."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from emberge.contracts import ChainSpec, MergeStrategy, Sampler, Stage
from emberge.errors import (
    EmbergeError,
    PluginError,
    Problem,
    RecipeError,
    find_closest_word,
    suggest,
)
from emberge.options import forms
from emberge.options.builder import BROKEN, Builder, OptionPath, build_value
from emberge.options.forms import CONTRACTS, Option, find_first_option, find_kinds, read_options
from emberge.plugins import Component, Plugins
from emberge.yaml_nodes import (
    Fields,
    Items,
    Node,
    Scalar,
    StepUse,
    build_node,
    describe_node,
    read_yaml,
    to_plain,
)

Built = TypeVar("Built")


class _NamedComponent(NamedTuple):
    """A component's name in a recipe, its options, and the place of the name."""

    name: str
    options: Node | None
    where: str


class _LabelledOptions(NamedTuple):
    """The options of a component or record, its label in messages, and its place."""

    label: str
    options: Node | None
    where: str


class _LabelledFields(NamedTuple):
    """`_LabelledOptions` whose options are a mapping."""

    label: str
    fields: Fields
    where: str


@build_value.register(forms.Record)
def _build_record(form: forms.Record, builder: Builder, node: Node, at: OptionPath) -> Any:
    # `at.label` is longer, and all entries of a list have the list's.
    names = at.path.split(".")
    label = f"an entry of '{names[-2]}'" if names[-1].isdecimal() else f"'{names[-1]}'"
    written = _LabelledOptions(label, node, node.where)
    return _build_dataclasses(builder, (form.type,), written, at)[0]


def _build_dataclasses(
    builder: Builder,
    classes: Sequence[type],
    written: _LabelledOptions,
    at: OptionPath,
    defaults: Mapping[str, Node] | None = None,
) -> list[Any]:
    """Build one component from its written options, or all links of a chain from the same options.

    Each link takes the options that are its fields, written or in the chain's `defaults`. If one cannot be
    built, all are BROKEN.
    """
    options = _as_mapping(builder, classes, written)
    if options is None:
        return [BROKEN] * len(classes)
    fields = options.fields
    known = dict.fromkeys(name for class_ in classes for name in read_options(class_))
    unknown = [name for name in fields.entries if name not in known]
    for name in unknown:
        hint = suggest(name, known) or (f"; it has {', '.join(known)}" if known else "")
        has = f"has no option '{name}'{hint}" if known else "has no options"
        builder.refuse(f"{written.label} {has}", fields.locate(name))
    if defaults:
        all_fields = Fields({**defaults, **fields.entries}, fields.where, fields.lines)
        options = options._replace(fields=all_fields)
    built = []
    for class_ in classes:
        built.append(_build_dataclass(builder, class_, options, at))
        list_path, _, index = at.path.rpartition(".")
        if index.isdecimal():  # the next link is the next entry of the list
            at = dataclasses.replace(at, path=f"{list_path}.{int(index) + 1}")
    return [BROKEN] * len(classes) if unknown or BROKEN in built else built


def _as_mapping(
    builder: Builder, classes: Sequence[type], written: _LabelledOptions
) -> _LabelledFields | None:
    """Return the options as a mapping; in `name: value`, the value is the class's own first option."""
    label, node, where = written
    if node is None or isinstance(node, Fields):
        return _LabelledFields(label, node or Fields({}, where), where)
    first = find_first_option(*classes)
    if first is None:
        builder.refuse(f"{label} has no option for {describe_node(node)}", node.where)
        return None
    return _LabelledFields(label, Fields({first.name: node}, node.where), where)


def _build_dataclass(
    builder: Builder, class_: type, written: _LabelledFields, at: OptionPath
) -> Any:
    """Build one dataclass from those of the written options that are its own."""
    options, fields = read_options(class_), written.fields
    values_by_name: dict[str, Any] = {}
    for name, option in options.items():
        inner = at.extend(name, label=f"option '{name}' of {written.label}")
        if name in fields.entries:
            builder.lines.setdefault(inner.path, fields.locate(name))
            values_by_name[name] = builder.build(option.form, fields.entries[name], inner)
        elif option.component is not None:
            values_by_name[name] = _build_default(builder, option, written.where, inner)
    missing = [n for n, option in options.items() if option.required and n not in values_by_name]
    if missing:
        _refuse_missing(builder, missing, options, written)
    if missing or any(value is BROKEN for value in values_by_name.values()):
        return BROKEN
    return _call_class(builder, class_, values_by_name, written)


def _refuse_missing(
    builder: Builder, missing: Sequence[str], options: Collection[str], written: _LabelledFields
) -> None:
    """Note the problem of the missing options, without those that are there and only misspelt."""
    unknown = [name for name in written.fields.entries if name not in options]
    misspelt = {find_closest_word(name, options) for name in unknown}
    names = [f"'{name}'" for name in missing if name not in misspelt]
    if names:
        noun = "option" if len(names) == 1 else "options"
        builder.refuse(f"{written.label} needs the {noun} {' and '.join(names)}", written.where)


def _call_class(
    builder: Builder, class_: type, values_by_name: Mapping[str, Any], written: _LabelledFields
) -> Any:
    """Return the instance; if its class refuses the values, note that at the one option that it names."""
    try:
        return class_(**values_by_name)
    except (ValueError, EmbergeError) as error:
        spoken = re.findall(r"\w+", str(error))
        named = [name for name in written.fields.entries if name in spoken]
        where = written.fields.locate(named[0]) if len(named) == 1 else written.where
        return builder.refuse(f"{written.label}: {error}", where)
    except Exception as error:  # a `__post_init__` of a plugin may raise anything
        raise PluginError(f"{written.where}: {written.label} cannot be made: {error!r}") from error


def _build_default(builder: Builder, option: Option, where: str, at: OptionPath) -> Any:
    """Build the component that is the default of an option, with its own defaults."""
    node = build_node(option.component, where)
    name = node.text if isinstance(node, Scalar) else next(iter(to_plain(node)))
    bare = name.rpartition(":")[2]
    if not any(component.name == bare for component in builder.plugins.components):
        message = f"{at.label} would be '{name}', which no plugin gives; name another"
        return builder.refuse(message + builder.plugins.blocked_hint, where)
    return builder.build(option.form, node, at)


def build_component(
    builder: Builder, contracts: tuple[type, ...], node: Node, at: OptionPath
) -> tuple[Component, list[Any]] | None:
    """Return the component that a node names, and its links; None for an unknown name.

    A component that is no chain is its own only link. If one cannot be built, all links are BROKEN.
    """
    named = _read_name(builder, node, at)
    component = _find_component(builder, contracts, named, at) if named is not None else None
    if named is None or component is None:
        return None
    builder.lines.setdefault(at.path, named.where)
    written = _LabelledOptions(_label_component(component), named.options, named.where)
    inner = dataclasses.replace(at, in_list=False)
    spec = component.type
    if not isinstance(spec, ChainSpec):
        return component, _build_dataclasses(builder, (spec,), written, inner)
    defaults = {name: build_node(value, written.where) for name, value in spec.defaults.items()}
    links = _build_dataclasses(builder, spec.links, written, inner, defaults)
    if BROKEN not in links:
        links = [link.as_link_of(component.name) for link in links]
    return component, links


def _find_component(
    builder: Builder, contracts: tuple[type, ...], named: _NamedComponent, at: OptionPath
) -> Component | None:
    """Return the component of the contracts that is named; None, with a problem noted, if there is none."""
    try:
        component = builder.plugins.find(named.name, *find_kinds(contracts))
    except PluginError as error:
        builder.refuse(str(error), named.where)
        return None
    is_chain = isinstance(component.type, ChainSpec)
    if issubclass(MergeStrategy if is_chain else component.type, contracts):
        return component
    contract_names = " or a ".join(contract.__name__ for contract in contracts)
    bases = () if is_chain else component.type.__mro__
    kind = next((class_.__name__ for class_ in bases if class_ in CONTRACTS), "chain")
    label = _label_component(component)
    builder.refuse(f"{label} is a {kind}, and {at.label} takes a {contract_names}", named.where)
    return None


def _read_name(builder: Builder, node: Node, at: OptionPath) -> _NamedComponent | None:
    if isinstance(node, Scalar) and isinstance(node.value, str) and node.value:
        return _NamedComponent(node.value, None, node.where)
    if isinstance(node, Fields) and len(node.entries) == 1:
        ((name, options),) = node.entries.items()
        has_no_options = isinstance(options, Scalar) and options.value is None
        return _NamedComponent(name, None if has_no_options else options, node.locate(name))
    if not isinstance(node, StepUse) or node.group:
        described = describe_node(node)
        if isinstance(node, Fields) and node.entries:
            described = " and ".join(f"'{name}'" for name in node.entries)
        message = f"{at.label} takes one component, `name` or `name: {{options}}`, not {described}"
        builder.refuse(message, node.where)
    return None


def _label_component(component: Component) -> str:
    return f"{component.kind} '{component.name}'"


@build_value.register(forms.OneComponent)
def _build_one_component(
    form: forms.OneComponent, builder: Builder, node: Node, at: OptionPath
) -> Any:
    built = build_component(builder, form.contracts, node, at)
    if built is None:
        return BROKEN
    component, links = built
    if len(links) > 1 and BROKEN not in links:
        message = f"{_label_component(component)} is a chain of {len(links)} links, and {at.label} takes one"
        return builder.refuse(message, node.where)
    return links[0]


@dataclass(frozen=True)
class _Link:
    """A built link of a chain, and its name in messages."""

    value: Any
    label: str
    where: str


@build_value.register(forms.SeveralComponents)
def _build_several_components(
    form: forms.SeveralComponents, builder: Builder, node: Node, at: OptionPath
) -> Any:
    nodes = _list_nodes(form, node)
    if not nodes:
        return builder.refuse(f"{at.label} is an empty list", node.where)
    links: list[_Link] = []
    all_built = True
    for item in nodes:
        built = build_component(builder, form.contracts, item, at.extend(len(links)))
        if built is None or BROKEN in built[1]:
            all_built = False
            continue
        label = _label_component(built[0])
        links += [_Link(value, label, item.where) for value in built[1]]
    before = len(builder.problems)
    if all_built and Stage in form.contracts:
        _check_stages(builder, links)
    elif all_built and Sampler in form.contracts:
        _check_samplers(builder, links)
    is_sound = all_built and len(builder.problems) == before
    return tuple(link.value for link in links) if is_sound else BROKEN


def _list_nodes(form: forms.SeveralComponents, node: Node) -> tuple[Node, ...]:
    """Return the nodes of a list's components; an unordered list may be a mapping of names to options."""
    if isinstance(node, Items):
        return node.items
    if isinstance(node, Fields) and len(node.entries) > 1 and not form.is_ordered:
        return tuple(
            Fields({name: value}, node.locate(name), node.lines)
            for name, value in node.entries.items()
        )
    return (node,)


def _check_stages(builder: Builder, links: list[_Link]) -> None:
    """Note a problem for each link of a merge chain that is out of order: only the last link merges."""
    *before, last = links
    for link in before:
        if isinstance(link.value, MergeStrategy):
            builder.refuse(f"{link.label} ends a chain and can only stand last", link.where)
    if not isinstance(last.value, MergeStrategy):
        builder.refuse(
            f"{last.label} cannot end a chain; let a merge strategy follow it", last.where
        )


def _check_samplers(builder: Builder, links: list[_Link]) -> None:
    """Note a problem for each sampler that is out of order: only the last makes batches."""
    *before, last = links
    for link in before:
        if _makes_batches(link.value) and type(link.value).select is Sampler.select:
            builder.refuse(f"{link.label} makes batches and can only stand last", link.where)
    if not _makes_batches(last.value):
        message = f"{last.label} only selects; end the chain with a sampler that makes batches"
        builder.refuse(message, last.where)


def _makes_batches(sampler: Sampler) -> bool:
    return type(sampler).batches is not Sampler.batches


def read_record(class_: type[Built], node: Node, label: str, folder: Path) -> Built:
    """Build a dataclass whose options are plain values from a mapping; paths are relative to `folder`.

    Raises:
        RecipeError: if an option is wrong; the message names its place, and the dataclass by `label`.
    """
    builder = Builder(Plugins(), folder)
    written = _LabelledOptions(label, node, node.where)
    (built,) = _build_dataclasses(builder, (class_,), written, OptionPath(label))
    if built is BROKEN:
        raise RecipeError(builder.problems)
    record: Built = built
    return record


def read_component(text: str, contract: type[Built], plugins: Plugins, place: str) -> Built:
    """Build the component of one contract that a text names, `name` or `name: {options}`; return it.

    Raises:
        RecipeError: if the text names no component, or an option is wrong; the message names `place`.
    """
    problems: list[Problem] = []
    kind = find_kinds((contract,))[0]
    node = read_yaml(text, lambda _: place, problems, what=f"the {kind}")
    if node is None or problems:
        raise RecipeError(problems or f"{place} needs a name; `emberge list --kind {kind}`")
    builder = Builder(plugins, Path())
    built = build_component(builder, (contract,), node, OptionPath(f"option '{place}'"))
    if builder.problems or built is None:
        raise RecipeError(builder.problems)
    component: Built = built[1][0]
    return component
