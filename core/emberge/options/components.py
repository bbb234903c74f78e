"""Components: a name and options become a frozen dataclass; a list of them becomes a chain or a sum."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from emberge.contracts import ChainSpec, MergeStrategy, Sampler
from emberge.errors import EmbergeError, PluginError, Problem, RecipeError, closest_word, suggest
from emberge.options import (
    forms,
    values,  # noqa: F401 - registers the build functions of other forms
)
from emberge.options.builder import BROKEN, Builder, OptionPath, builds
from emberge.options.forms import CONTRACTS, Option, first_option, kinds_of, options_of
from emberge.plugins import Component, Plugins
from emberge.yaml_nodes import (
    Fields,
    Items,
    Node,
    Scalar,
    StepUse,
    describe_node,
    node_of,
    plain,
    read_yaml,
)

Built = TypeVar("Built")


class _Given(NamedTuple):
    """A component as a recipe writes it; `label` names it in messages, `where` is the name's place."""

    label: str
    options: Node | None
    where: str


@builds(forms.Record)
def _build_record(build: Builder, form: forms.Record, node: Node, at: OptionPath) -> Any:
    name = at.label.removeprefix("option '").partition("'")[0]
    listed = at.path.rpartition(".")[2].isdecimal()
    label = f"an entry of '{name}'" if listed else f"'{name}'"
    (record,) = _build_owners(build, (form.type,), _Given(label, node, node.where), at)
    return record


def _build_owners(
    build: Builder,
    owners: Sequence[type],
    given: _Given,
    at: OptionPath,
    defaults: Mapping[str, Node] | None = None,
) -> list[Any]:
    """Build the dataclasses that share the given options: one, or the links of a chain with its `defaults`.

    Each gets its own options, and several may have one option. All are BROKEN if one of them is not sound.
    """
    fields = _read_fields(build, owners, given)
    if fields is None:
        return [BROKEN] * len(owners)
    known = dict.fromkeys(name for owner in owners for name in options_of(owner))
    unknown = [name for name in fields.entries if name not in known]
    for name in unknown:
        hint = suggest(name, known) or (f"; it has {', '.join(known)}" if known else "")
        has = f"has no option '{name}'{hint}" if known else "has no options"
        build.refuse(f"{given.label} {has}", fields.line(name))
    if defaults:
        fields = Fields({**defaults, **fields.entries}, fields.where, fields.lines)
    built = [
        _build_owner(build, owner, given, fields, _shift_place(at, index))
        for index, owner in enumerate(owners)
    ]
    return [BROKEN] * len(owners) if unknown or BROKEN in built else built


def _read_fields(build: Builder, owners: Sequence[type], given: _Given) -> Fields | None:
    """Return the options as a mapping; in `name: value`, the value is the class's own first option."""
    node = given.options
    if node is None or isinstance(node, Fields):
        return node or Fields({}, given.where)
    first = next((o for o in map(first_option, owners) if o is not None), None)
    if first is None:
        build.refuse(f"{given.label} has no option for {describe_node(node)}", node.where)
        return None
    return Fields({first.name: node}, node.where)


def _build_owner(build: Builder, owner: type, given: _Given, fields: Fields, at: OptionPath) -> Any:
    """Build one dataclass of those of its options that are among `fields`."""
    options = options_of(owner)
    built: dict[str, Any] = {}
    for option in options.values():
        inner = at.under(option.name, label=f"option '{option.name}' of {given.label}")
        if option.name in fields.entries:
            build.lines.setdefault(inner.path, fields.line(option.name))
            built[option.name] = build.build(option.form, fields.entries[option.name], inner)
        elif option.component is not None:
            built[option.name] = _build_default(build, option, given.where, inner)
    missing = [option.name for option in options.values() if option.required]
    missing = [name for name in missing if name not in built]
    # An option that is only misspelt is not noted again.
    misspelt = {closest_word(name, options) for name in fields.entries if name not in options}
    names = [f"'{name}'" for name in missing if name not in misspelt]
    if names:
        noun = "option" if len(names) == 1 else "options"
        build.refuse(f"{given.label} needs the {noun} {' and '.join(names)}", given.where)
    if missing or any(value is BROKEN for value in built.values()):
        return BROKEN
    try:
        return owner(**built)
    except (ValueError, EmbergeError) as error:
        spoken = re.findall(r"\w+", str(error))
        named = [name for name in fields.entries if name in spoken]
        where = fields.line(named[0]) if len(named) == 1 else given.where
        return build.refuse(f"{given.label}: {error}", where)
    except Exception as error:
        raise PluginError(f"{given.where}: {given.label} cannot be made: {error!r}") from error


def _build_default(build: Builder, option: Option, where: str, at: OptionPath) -> Any:
    """Build the component that is the default of an option, with its own defaults."""
    node = node_of(option.component, where)
    assert node is not None
    name = node.text if isinstance(node, Scalar) else next(iter(plain(node)))
    bare = name.rpartition(":")[2]
    if not any(component.name == bare for component in build.plugins.components):
        message = f"{at.label} would be '{name}', which no plugin gives; name another"
        return build.refuse(message + build.plugins.blocked_hint, where)
    return build.build(option.form, node, at)


def _shift_place(at: OptionPath, by: int) -> OptionPath:
    """Return the path of the link that is `by` places later in the same list."""
    path, _, index = at.path.rpartition(".")
    return dataclasses.replace(at, path=f"{path}.{int(index) + by}") if index.isdigit() else at


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
        component = build.plugins.find(named.label, *kinds_of(contracts))
    except PluginError as error:
        build.refuse(str(error), named.where)
        return None
    spec = component.type if isinstance(component.type, ChainSpec) else None
    label = _label_component(component)
    if not issubclass(MergeStrategy if spec else component.type, contracts):
        contract_names = " or a ".join(contract.__name__ for contract in contracts)
        bases = () if spec else component.type.__mro__
        kind = next((class_.__name__ for class_ in bases if class_ in CONTRACTS), "chain")
        build.refuse(f"{label} is a {kind}, and {at.label} takes a {contract_names}", named.where)
        return None
    build.lines.setdefault(at.path, named.where)
    inner = dataclasses.replace(at, entry=False)
    given = named._replace(label=label)
    if spec is None:
        (value,) = _build_owners(build, (component.type,), given, inner)
        return component, value
    nodes = {name: node_of(default, given.where) for name, default in spec.defaults.items()}
    defaults = {name: node for name, node in nodes.items() if node is not None}
    links = _build_owners(build, spec.links, given, inner, defaults)
    is_sound = BROKEN not in links
    return component, tuple(
        link.as_link_of(component.name) for link in links
    ) if is_sound else BROKEN


def _read_name(build: Builder, node: Node, at: OptionPath) -> _Given | None:
    if isinstance(node, Scalar) and isinstance(node.value, str) and node.value:
        return _Given(node.value, None, node.where)
    if isinstance(node, Fields) and len(node.entries) == 1:
        ((name, options),) = node.entries.items()
        has_no_options = isinstance(options, Scalar) and options.value is None
        return _Given(name, None if has_no_options else options, node.line(name))
    if not isinstance(node, StepUse) or node.group:
        described = describe_node(node)
        if isinstance(node, Fields) and node.entries:
            described = " and ".join(f"'{name}'" for name in node.entries)
        message = f"{at.label} takes one component, `name` or `name: {{options}}`, not {described}"
        build.refuse(message, node.where)
    return None


def _label_component(component: Component) -> str:
    return f"{component.kind} '{component.name}'"


@builds(forms.Part)
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


@dataclass(frozen=True)
class _Link:
    """A built link of a chain, and its name in messages."""

    value: Any
    label: str
    where: str


@builds(forms.Parts)
def _build_parts(build: Builder, form: forms.Parts, node: Node, at: OptionPath) -> Any:
    nodes = _list_nodes(form, node)
    if not nodes:
        return build.refuse(f"{at.label} is an empty list", node.where)
    links: list[_Link] = []
    all_built = True
    for item in nodes:
        built = build_component(build, form.contracts, item, at.under(len(links)))
        if built is None or built[1] is BROKEN:
            all_built = False
            continue
        component, value = built
        parts = value if isinstance(component.type, ChainSpec) else (value,)
        links += [_Link(part, _label_component(component), item.where) for part in parts]
    before = len(build.problems)
    if all_built and form.chain:
        _check_stages(build, links)
    elif all_built and Sampler in form.contracts:
        _check_samplers(build, links)
    is_sound = all_built and len(build.problems) == before
    return tuple(link.value for link in links) if is_sound else BROKEN


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


def _check_stages(build: Builder, links: list[_Link]) -> None:
    """Note each link of a merge that is out of order: only the last link merges."""
    *before, last = links
    for link in before:
        if isinstance(link.value, MergeStrategy):
            build.refuse(f"{link.label} ends a chain and can only stand last", link.where)
    if not isinstance(last.value, MergeStrategy):
        build.refuse(f"{last.label} cannot end a chain; let a merge strategy follow it", last.where)


def _check_samplers(build: Builder, links: list[_Link]) -> None:
    """Note each sampler that is out of order: only the last makes batches."""
    *before, last = links
    for link in before:
        if _makes_batches(link.value) and type(link.value).select is Sampler.select:
            build.refuse(f"{link.label} makes batches and can only stand last", link.where)
    if not _makes_batches(last.value):
        message = f"{last.label} only selects; end the chain with a sampler that makes batches"
        build.refuse(message, last.where)


def _makes_batches(sampler: Sampler) -> bool:
    return type(sampler).batches is not Sampler.batches


def read_record(owner: type[Built], node: Node, label: str, folder: Path) -> Built:
    """Build a dataclass whose options are plain values from a mapping; paths are relative to `folder`.

    Raises:
        RecipeError: if an option is wrong; the message names its place, and the dataclass by `label`.
    """
    build = Builder(Plugins(), folder)
    (built,) = _build_owners(build, (owner,), _Given(label, node, node.where), OptionPath(label))
    if built is BROKEN:
        raise RecipeError(build.problems)
    record: Built = built
    return record


def read_component(text: str, contract: type[Built], plugins: Plugins, place: str) -> Built:
    """Build the component of one contract that a text names, `name` or `name: {options}`; return it.

    Raises:
        RecipeError: if the text names no component, or an option is wrong; the message names `place`.
    """
    problems: list[Problem] = []
    kind = kinds_of((contract,))[0]
    node = read_yaml(text, lambda _: place, problems, what=f"the {kind}")
    if node is None or problems:
        raise RecipeError(problems or f"{place} needs a name; `emberge list --kind {kind}`")
    build = Builder(plugins, Path())
    built = build_component(build, (contract,), node, OptionPath(f"option '{place}'"))
    if build.problems or built is None or built[1] is BROKEN:
        raise RecipeError(build.problems)
    component: Built = built[1]
    return component
