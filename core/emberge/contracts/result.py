"""Results that references name: the record of a step's result, and a model on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

from emberge.contracts.details import (
    AdapterFacts,
    BaseFacts,
    DataDetails,
    Details,
    Figure,
    MergeDetails,
    ModelOrigin,
    TrainingDetails,
    TrainingWork,
    from_json,
    to_json,
)
from emberge.contracts.reference import ArtifactKind, ModelRef

_DETAILS: Mapping[str, Any] = {
    **{one.__name__: one for one in (TrainingDetails, MergeDetails, DataDetails)},
    "": dict[str, Any],  # details of the step's own
}


@dataclass(frozen=True, slots=True)
class Artifact:
    """The record of a step's result, written as `artifact.json` into its folder by the runner.

    `size` is the number of training examples behind a model (for `weights: size`). `parents` names the models
    that the result was made from. Paths are relative. `details` are JSON of the step's own, which cards and
    reports show, or one of the classes that other steps read; `artifact.json` names the class.
    """

    kind: ArtifactKind
    size: int | None = None
    parents: tuple[str, ...] = ()
    details: Details | Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    origin: ModelOrigin = "trained"
    made_by: str = ""
    """Phrase for a change without training, such as "cutting layers from"."""
    base: BaseFacts | None = None
    """Model that a training or a change started from, or that is the base of a merge."""
    adapter: AdapterFacts | None = None
    trainings: Mapping[str, TrainingWork] = field(default_factory=dict)
    """Trainings behind a merge or a choice, by the step's id; empty if one is unknown."""
    figures: tuple[Figure, ...] = ()
    table: str = ""
    """Markdown file of the result that is shown at the end of a run."""
    unmet: tuple[str, ...] = ()
    """Requirements that are not met: the result is published, then the run ends with `RequirementError`."""
    note: str = ""
    """Few words that `status` shows with the step, such as "1 of 2 requirements not met"."""

    def to_record(self) -> dict[str, Any]:
        """Return the step's part of artifact.json; `details_type` names the class of typed details."""
        record = to_json(replace(self, details={}))
        record = {"kind": self.kind, "size": None, "parents": [], "warnings": [], **record}
        if isinstance(self.details, Mapping):
            return {**record, "details": self.details}
        name = type(self.details).__name__
        return {**record, "details_type": name, "details": to_json(self.details)}

    @classmethod
    def of(cls, record: Any) -> Self:
        """Return the artifact described by the content of an artifact.json, ignoring unknown keys.

        Raises:
            ValueError: if a field is missing or of another type, in the artifact or in its typed details.
        """
        record = from_json(dict[str, Any], record, "record")
        known = {one.name: record[one.name] for one in fields(cls) if one.name in record}
        details = known.pop("details", {})
        named = record.get("details_type", "")
        if named not in _DETAILS:
            raise ValueError(f"details_type: there is no '{named}'")
        typed = from_json(_DETAILS[named], details, "details")
        return replace(from_json(cls, known), details=typed)


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
    def size(self) -> int | None:
        """Number of training examples behind the model; None if unknown."""
        return self.artifact.size if self.artifact is not None else None

    def list_trainings(self, step: str) -> Mapping[str, TrainingWork]:
        """Return the trainings behind the model of `step`, by the ids of their steps; empty if unknown."""
        if self.artifact is None or not isinstance(self.artifact.details, TrainingDetails):
            return self.artifact.trainings if self.artifact is not None else {}
        return {step: self.artifact.details}

    def as_base(self, reference: ModelRef) -> BaseFacts:
        """Return the model, which the recipe names by `reference`, as the base of another."""
        return BaseFacts(self.name, reference.text, self.fingerprint)

    def describe_change(
        self, reference: ModelRef, made_by: str, details: Mapping[str, Any]
    ) -> Artifact:
        """Return the artifact of a model that a step made from this one, without training."""
        return Artifact(
            kind="model",
            size=self.size,
            parents=(reference.text,),
            details=details,
            origin="changed",
            made_by=made_by,
            base=self.as_base(reference),
        )
