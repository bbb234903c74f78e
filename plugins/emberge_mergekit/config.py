"""Configs of mergekit, read by mergekit's own models; each part knows its line in the user's text.

What mergekit would pass over in silence, such as a misspelt key, is a problem here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import Problem, suggest
from emberge.yaml_nodes import Fields, Items, Node, read_yaml, to_plain

from emberge_mergekit.library import silencing_mergekit

if TYPE_CHECKING:
    from mergekit.common import ModelReference
    from mergekit.config import MergeConfiguration

SHAPE_KEYS = ("models", "slices")
_YAML_REMEDY = "run the config by `mergekit-yaml`, or leave it out"
_UNSUPPORTED_KEYS = {
    "modules": "name the models under 'models'; a recipe's `rules` give parts of them another strategy",
    "chat_template": "the tokenizer keeps its own",
    "residual_weight": "mergekit does not use it either, so leave it out",
    "override_architecture": "tensors are matched by their names here, so leave it out",
    "tokens": _YAML_REMEDY,
    "pad_to_multiple_of": _YAML_REMEDY,
}


@dataclass(frozen=True)
class ConfigPlace:
    """A value of the user's text, and the place `file:line` of its key."""

    node: Node | None
    where: str
    keys: tuple[str | int, ...] = ()
    """The keys on the way to the value."""

    def at(self, *keys: str | int) -> ConfigPlace:
        """Return the place of an inner value, or of the deepest one on the way to it."""
        place = self
        for key in keys:
            node, keys = place.node, (*place.keys, key)
            if isinstance(node, Fields) and key in node.entries:
                place = ConfigPlace(node.entries[str(key)], node.locate(str(key)), keys)
            elif isinstance(node, Items) and isinstance(key, int) and key < len(node.items):
                place = ConfigPlace(node.items[key], node.items[key].where, keys)
            else:
                break
        return place


@dataclass(frozen=True)
class Scope:
    """One mapping `parameters` as mergekit reads it."""

    parameters: Mapping[str, Any]
    place: ConfigPlace


@dataclass(frozen=True)
class Source:
    """One model of a merge, with its own parameters."""

    model: ModelReference
    scope: Scope
    place: ConfigPlace


@dataclass(frozen=True)
class MergedSources:
    """The models of a merge; `scopes` are ordered from inner to outer.

    `layers` is the number of their layers, if they are written as the one slice of all layers.
    """

    sources: tuple[Source, ...]
    base: ModelReference | None
    scopes: tuple[Scope, ...]
    place: ConfigPlace
    layers: int | None = None


@dataclass(frozen=True)
class Config:
    """A config: what mergekit reads, and its models."""

    content: MergeConfiguration
    merged: MergedSources | None
    place: ConfigPlace


def read_document(text: str, path: Path | None) -> tuple[ConfigPlace | None, list[Problem]]:
    """Return (document of a YAML text or None, problems of its YAML)."""
    label, problems = path or "config", list[Problem]()
    node = read_yaml(text, lambda line: f"{label}:{line}", problems, what="the config")
    return None if node is None else ConfigPlace(node, node.where), problems


def is_config(document: ConfigPlace) -> bool:
    """Return whether the document has the keys of a mergekit config and, unlike a recipe, no `steps`."""
    keys = document.node.entries.keys() if isinstance(document.node, Fields) else set[str]()
    return "steps" not in keys and bool(keys & {"merge_method", *SHAPE_KEYS})


def read_config(document: ConfigPlace) -> tuple[Config | None, list[Problem]]:
    """Return (config of a document or None, problems: what mergekit refuses, and what it would pass over)."""
    with silencing_mergekit():
        from mergekit.config import MergeConfiguration
    from pydantic import ValidationError

    if not isinstance(document.node, Fields):
        return None, [Problem("a config is a mapping", document.where)]
    try:
        content = MergeConfiguration.model_validate(to_plain(document.node))
    except ValidationError as error:
        fields = [*MergeConfiguration.model_fields]
        unknown_keys = _find_unknown_keys(document, fields, "the config")
        return None, [*unknown_keys, *_describe_errors(error.errors(), document)]
    except RuntimeError as error:  # of mergekit's own checks
        return None, [Problem(str(error), document.where)]
    sources, problems = _read_sources(content, document)
    return Config(content, sources, document), [
        *_find_passed_over(content, document, "the config"),
        *problems,
    ]


def _describe_errors(errors: list[Any], document: ConfigPlace) -> Iterator[Problem]:
    """Yield one problem for each value that mergekit refuses; it reports each form of a value by itself."""
    seen: set[tuple[str | int, ...]] = set()
    for error in errors:
        place = document.at(*error["loc"])
        label = ".".join(map(str, place.keys)) or "the config"
        message = f"{label}: {error['msg']}"
        if "parameters" in place.keys[:-1]:
            message = f"{label} takes a value, a list over depth, or a list of {{filter, value}}"
        elif error["type"] == "missing":
            message = f"{label} needs '{error['loc'][-1]}'"
        if place.keys not in seen:
            seen.add(place.keys)
            yield Problem(message, place.where)


def _find_passed_over(value: Any, place: ConfigPlace, label: str) -> Iterator[Problem]:
    """Yield a problem for each key, at any depth, that mergekit passes over or that is not supported."""
    inner: Mapping[Any, Any] = {}
    if hasattr(type(value), "model_fields"):
        fields = [*type(value).model_fields]
        yield from _find_unknown_keys(place, fields, label)
        inner = {name: getattr(value, name, None) for name in fields}
    elif isinstance(value, Mapping):
        inner = value
    elif isinstance(value, list):
        inner = dict(enumerate(value))
    for key, entry in inner.items():
        at = place.at(key)
        if key in _UNSUPPORTED_KEYS and entry is not None and hasattr(type(value), "model_fields"):
            yield Problem(f"'{key}' is not supported; {_UNSUPPORTED_KEYS[key]}", at.where)
        elif at is not place:
            words = f"an entry of {label}" if isinstance(key, int) else f"'{key}'"
            yield from _find_passed_over(entry, at, words)


def _find_unknown_keys(place: ConfigPlace, fields: list[str], label: str) -> Iterator[Problem]:
    if isinstance(place.node, Fields):
        for key in place.node.entries.keys() - set(fields):
            hint = suggest(key, fields) or f"; it has {', '.join(fields)}"
            yield Problem(f"{label} has no '{key}'{hint}", place.at(key).where)


def _read_sources(
    content: MergeConfiguration, place: ConfigPlace
) -> tuple[MergedSources | None, list[Problem]]:
    """Return (models of a document, no problems); (None, problems) if layers are cut or stacked."""
    scopes = [Scope(content.parameters or {}, place.at("parameters"))]
    if content.modules:
        return None, []  # `_find_passed_over` reports them
    if content.models:
        sources = _list_sources(content.models, place.at("models"))
        return MergedSources(sources, content.base_model, tuple(scopes), place.at("models")), []
    one, at = content.slices[0], place.at("slices", 0)
    ranges = {tuple(source.layer_range) for source in one.sources}
    if len(content.slices) > 1 or len(ranges) != 1 or min(ranges)[0] != 0:
        message = (
            "'slices' is taken for one slice with all layers of each model; layers are not cut or stacked: "
            "run the config by `mergekit-yaml`, and merge its result"
        )
        return None, [Problem(message, place.at("slices").where)]
    sources = _list_sources(one.sources, at.at("sources"))
    scopes.insert(0, Scope(one.parameters or {}, at.at("parameters")))
    base = one.base_model or content.base_model
    return MergedSources(sources, base, tuple(scopes), at, max(ranges)[1]), []


def _list_sources(sources: list[Any], place: ConfigPlace) -> tuple[Source, ...]:
    return tuple(
        Source(
            one.model, Scope(one.parameters or {}, place.at(number, "parameters")), place.at(number)
        )
        for number, one in enumerate(sources)
    )
