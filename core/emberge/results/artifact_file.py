"""The file `artifact.json` of a result: the artifact, how it came about, and the hash of each file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from emberge.contracts import Artifact, BaseFacts, Model, ModelRef
from emberge.errors import CheckpointError, EmbergeError, PluginError
from emberge.files import read_json
from emberge.hashes import FileContent
from emberge.model_folder import find_model_name

ARTIFACT = "artifact.json"
"""The name of the file; a result is finished when it has one."""


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a step: its text in the recipe, its name in tables, its content's hash.

    The content of a `step` is its fingerprint. For a catalogue of `data`, `only` names the sets that were
    used, unless all were used.
    """

    reference: str
    name: str
    content: str
    kind: Literal["model", "data", "hub data", "step"] = "model"
    only: tuple[str, ...] = ()


def build_artifact_record(
    artifact: Artifact,
    provenance: Mapping[str, Any],
    inputs: Sequence[Input],
    files: Mapping[str, FileContent],
    seconds: float,
) -> dict[str, Any]:
    """Return the content of artifact.json: the step's artifact, its provenance, and the hash of each file.

    Raises:
        PluginError: if the artifact's details cannot be written as JSON.
    """
    facts = dict(provenance)
    component = facts.pop("kind")
    try:
        record = {
            **artifact.to_record(),
            **facts,
            "component": component,
            "seconds": round(seconds, 3),
            "inputs": [
                {key: value for key, value in dataclasses.asdict(input_).items() if value != ()}
                for input_ in inputs
            ],
            "files": {name: dataclasses.asdict(content) for name, content in files.items()},
        }
        json.dumps(record)
    except (TypeError, ValueError) as error:
        raise PluginError(
            f"the details of the artifact of {component} are no JSON: {error}"
        ) from error
    return record


def read_artifact(folder: Path) -> Artifact | None:
    """Read the artifact of a finished step; return None if the folder is not a finished result.

    Raises:
        EmbergeError: if artifact.json cannot be understood.
    """
    try:
        return Artifact.of(read_json(folder / ARTIFACT))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise EmbergeError(
            f"{folder / ARTIFACT} is damaged ({error}); remove it to have the step run again"
        ) from error


def find_adapted_base(model: Model, reference: ModelRef) -> BaseFacts:
    """Return the model on which the adapter of `model` lies, as records name it; without one, the model.

    `reference` names the model in the recipe.
    """
    if model.adapter is None:
        return model.as_base(reference)
    if reference.adapter is not None:
        return BaseFacts(reference.main, reference.main)
    recorded = model.artifact.base if model.artifact is not None else None
    return recorded or BaseFacts(find_model_name(model.folder))


def read_record(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file that a run wrote; empty if it is missing or damaged."""
    try:
        record = read_json(path)
    except (OSError, ValueError, CheckpointError):
        return {}
    return record if isinstance(record, dict) else {}
