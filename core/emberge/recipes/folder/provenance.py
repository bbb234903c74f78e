"""The provenance of a result, as `artifact.json` has it: recipe, inputs, versions, and its files' content."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from emberge.contracts import Artifact
from emberge.errors import PluginError
from emberge.files import read_json, write_text
from emberge.plugins import Plugins
from emberge.recipes.folder.run_folder import ARTIFACT
from emberge.recipes.options.component_tree import parts_of
from emberge.recipes.recipe import Recipe
from emberge.tensor_files import FileContent

CHANGING = ("README.md", "space.json")
"""Files of a result that may change after its step: a model's card gets scores, its passport canaries."""


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a step: the recipe's words for it, its name in tables, its content's hash.

    The content of a `step` is its fingerprint; of a catalogue of `data`, `only` names the sets
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
    """Return the content of artifact.json: the step's artifact, its provenance, and the hash of each file.

    Raises:
        PluginError: when the artifact's details are no JSON.
    """
    facts = dict(provenance)
    component = facts.pop("kind")
    record = {
        **dataclasses.asdict(artifact),
        **facts,
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
    entry = dataclasses.asdict(one)
    return entry if one.only else {k: v for k, v in entry.items() if k != "only"}


def with_contents(record: Mapping[str, Any], contents: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the record of a result of which some files have other contents, by their names."""
    files = {name: FileContent.of_bytes(content).plain() for name, content in contents.items()}
    return {**record, "files": {**record["files"], **files}}


def record_text(record: Mapping[str, Any]) -> str:
    """Return a record as artifact.json has it."""
    return json.dumps(record, indent=2, ensure_ascii=False) + "\n"


def write_with_record(folder: Path, name: str, text: str) -> None:
    """Write a file into a folder, if its text is another, and its hash into artifact.json if there is one.

    A kill between the two leaves a hash of before, which the next call mends.
    """
    path, content = folder / name, text.encode()
    if not path.is_file() or path.read_bytes() != content:
        write_text(path, text)
    if not (folder / ARTIFACT).is_file():
        return
    record = read_json(folder / ARTIFACT)
    if "files" not in record:
        return  # a record that lists no file
    if (changed := with_contents(record, {name: content})) != record:
        write_text(folder / ARTIFACT, record_text(changed))


def kept_text(recipe: Recipe) -> str:
    """Return a recipe's text as OUT keeps it, with the options that were set as comments at its top."""
    notes = "".join(f"# run with --set {override}\n" for override in recipe.overrides)
    return notes + recipe.text


def recipe_hash(recipe: Recipe) -> str:
    """Return the SHA-256 of the recipe as OUT keeps it; "" for a recipe without a text."""
    return hashlib.sha256(kept_text(recipe).encode()).hexdigest() if recipe.text else ""


def plugins_behind(component: Any, plugins: Plugins) -> dict[str, str]:
    """Return the plugins of a component and its parts, each with its distribution and version."""
    found = {}
    for type_ in dict.fromkeys(type(part) for _, part in parts_of(component)):
        try:
            one = plugins.component_of(type_)
        except PluginError:
            continue  # a part of a component's options
        found[one.plugin] = f"{one.distribution} {one.version}".strip()
    return dict(sorted(found.items()))
