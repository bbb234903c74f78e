"""How a result came about, as `artifact.json` keeps it: recipe, inputs, versions, and what its files hold."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from emberge.contracts.reference import Artifact
from emberge.errors import PluginError
from emberge.plugins import Plugins
from emberge.recipes.folder.run_folder import ARTIFACT
from emberge.recipes.recipe import Recipe
from emberge.tensor_files.content_hash import FileContent

__all__ = [
    "CHANGING",
    "Input",
    "artifact_record",
    "kept_text",
    "plugins_behind",
    "recipe_hash",
]

CHANGING = (ARTIFACT, "README.md")
"""Files of a result that are no part of what its hashes speak of: a model's card gets scores later."""


@dataclass(frozen=True, slots=True)
class Input:
    """Something that a step was given: the recipe's words for it, its name in tables, its content's hash.

    A `step` stands with the fingerprint it was made under; of a catalogue of `data`, `only` names the sets
    that were taken, if not all.
    """

    reference: str
    name: str
    content: str
    kind: Literal["model", "data", "step"] = "model"
    only: tuple[str, ...] = ()


def artifact_record(
    artifact: Artifact,
    provenance: Mapping[str, Any],
    inputs: Sequence[Input],
    files: Mapping[str, FileContent],
    seconds: float,
) -> dict[str, Any]:
    """What artifact.json holds: what the step left, how it came about, and the content of each file.

    Raises:
        PluginError: when the artifact's details are no JSON.
    """
    made = dict(provenance)
    component = made.pop("kind")
    record = {
        **dataclasses.asdict(artifact),
        **made,
        "component": component,
        "seconds": round(seconds, 3),
        "inputs": [_input(one) for one in inputs],
        "files": {name: content.plain() for name, content in files.items()},
    }
    try:
        json.dumps(record)
    except (TypeError, ValueError) as error:
        raise PluginError(
            f"the details of the artifact of {component} are no JSON: {error}"
        ) from error
    return record


def _input(one: Input) -> dict[str, Any]:
    said = dataclasses.asdict(one)
    return said if one.only else {k: v for k, v in said.items() if k != "only"}


def kept_text(recipe: Recipe) -> str:
    """A recipe's text as OUT keeps it: the options that were laid over it stand first, as comments."""
    notes = "".join(f"# run with --set {override}\n" for override in recipe.overrides)
    return notes + recipe.text


def recipe_hash(recipe: Recipe) -> str:
    """SHA-256 of the recipe as OUT keeps it; nothing for a recipe that was never a text."""
    return hashlib.sha256(kept_text(recipe).encode()).hexdigest() if recipe.text else ""


def plugins_behind(component: Any, plugins: Plugins) -> dict[str, str]:
    """The plugins that a component, with all in it, comes from, and the distribution and version of each."""
    found = {}
    for type_ in dict.fromkeys(_types(component)):
        try:
            one = plugins.component_of(type_)
        except PluginError:
            continue  # a part of a component's options
        found[one.plugin] = f"{one.distribution} {one.version}".strip()
    return dict(sorted(found.items()))


def _types(value: Any) -> Iterator[type]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield type(value)
        for option in dataclasses.fields(value):
            yield from _types(getattr(value, option.name))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _types(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _types(item)
