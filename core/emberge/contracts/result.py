"""Results that references name: the record of a step's result, and a model on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, get_args

from emberge.contracts.reference import ArtifactKind, ModelRef


@dataclass(frozen=True, slots=True)
class Artifact:
    """The record of a step's result, written as `artifact.json` into its folder by the runner.

    `size` is the number of training examples behind a model (for `weights: size`). `parents` names the models
    that the result was made from. `details` is free JSON that reports and cards read. Paths are relative.

    Two keys of `details` mean something to the runner. `unmet` lists requirements that are not met: the
    result is published, and then the run ends with `RequirementError`. `table` names a Markdown file of the
    result that is shown at the end.

    Four keys mean something to reports. `changes` describes each dataset that a step changed: the number of
    `rows` before the step, the numbers of rows `kept`, `dropped` and `changed`, and `notes`, which are
    reasons with the number of rows for each. `sentences` are shown below these counts. `weights_by_layer`
    contains numbers by layer and label, such as each model's weight in a merge. `figures` lists figures to
    show. Each has a `title`, a `caption`, and a `heat_map`, a `table` (`title`, `head`, `rows`) or both. A
    heat map has `rows` and `columns`, lists of names, and `values`, a list of numbers for each row, in which
    null is an empty cell. If any number is below 0, numbers below and above 0 get different colours.
    """

    kind: ArtifactKind
    size: int | None = None
    parents: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, record: Any) -> Self:
        """Return the artifact described by the content of an artifact.json, ignoring unknown keys.

        Raises:
            ValueError: if a field has a wrong type, or the artifact has no kind.
        """
        if not isinstance(record, dict) or record.get("kind") not in get_args(ArtifactKind):
            raise ValueError("it is of no kind")
        size, details = record.get("size"), record.get("details", {})
        if not (size is None or (type(size) is int and size >= 0)):
            raise ValueError("its size is no number of examples")
        if not isinstance(details, dict):
            raise ValueError("its details are no object")
        lists = [record.get(name, []) for name in ("parents", "warnings")]
        for texts in lists:
            if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
                raise ValueError("its parents or its warnings are no list of texts")
        return cls(record["kind"], size, tuple(lists[0]), details, tuple(lists[1]))


@dataclass(frozen=True, slots=True)
class Model:
    """A model on disk, resolved from a ModelRef.

    `name` is the model's name in tables (the step's id, the hub id, the folder's name). `fingerprint` hashes
    its content. If there is an `adapter`, `folder` is the folder of its base.
    """

    name: str
    folder: Path
    fingerprint: str
    artifact: Artifact | None = None
    adapter: Path | None = None

    @property
    def details(self) -> Mapping[str, Any]:
        """The details of the artifact of the step that made the model; empty for a model from outside."""
        return self.artifact.details if self.artifact is not None else {}

    @property
    def size(self) -> int | None:
        """Number of training examples behind the model; None if unknown."""
        return self.artifact.size if self.artifact is not None else None

    def as_base(self, reference: ModelRef) -> dict[str, str]:
        """Return the details of an artifact that was made from this one model, named by `reference`.

        Cards, lineage and forgetting read them: `base`, `base_reference` and `base_fingerprint`.
        """
        return {
            "base": self.name,
            "base_reference": reference.text,
            "base_fingerprint": self.fingerprint,
        }
