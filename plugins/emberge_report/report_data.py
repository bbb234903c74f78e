"""Data of a report, read from the folders of its steps."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from emberge import Artifact, EmbergeError, Machine, Model, ModelRef, StepRef, Workspace
from emberge.contracts import DataDetails, Figure, MergeDetails, ModelOrigin, TrainingDetails
from emberge.results import ARTIFACT, read_record
from emberge_evaluate import Scores, read_scores

# Logged numbers (at, value), sorted by `at`.
Points = Sequence[tuple[float, float]]
# Files that a run keeps in OUT, and in the folder of each result.
RECIPE_FILE, METRICS_FILE = "recipe.yaml", "metrics.jsonl"


@dataclass(frozen=True)
class ReportedStep:
    """Step of the report: its result, what the runner noted of it, and more of one that made a model."""

    name: str
    folder: Path
    artifact: Artifact
    component: str = ""
    fingerprint: str = ""
    seconds: float | None = None
    curves: Mapping[str, Points] = field(default_factory=dict)
    distances: LayerDistances | None = None
    no_distances: str = ""
    """Reason why there are no distances."""

    @property
    def training(self) -> TrainingDetails | None:
        """Details of a training; None for other steps."""
        details = self.artifact.details
        return details if isinstance(details, TrainingDetails) else None

    @property
    def merge(self) -> MergeDetails:
        """Details of a merge; empty if the step states none."""
        details = self.artifact.details
        return (
            details if isinstance(details, MergeDetails) else MergeDetails(strategy=(), weights={})
        )

    @property
    def base(self) -> str | None:
        """Name of the model that the step started from; None without one."""
        return self.artifact.base.name if self.artifact.base is not None else None

    @property
    def steps(self) -> int | None:
        """Number of a training's optimizer steps; None if it is unknown."""
        loss = self.curves.get("loss")
        if self.training is not None:
            return self.training.steps
        return int(loss[-1][0]) if loss else None


@dataclass(frozen=True)
class ReportData:
    """Data of a page; `base` is the name of the model from which distances are measured, if they are."""

    title: str
    steps: tuple[ReportedStep, ...] = ()
    scores: tuple[tuple[str, Scores], ...] = ()
    figures: tuple[tuple[str, tuple[Figure, ...]], ...] = ()
    data: tuple[tuple[str, DataDetails], ...] = ()
    base: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    recipe: str = ""

    @property
    def models(self) -> tuple[ReportedStep, ...]:
        """Steps that made a model."""
        return tuple(step for step in self.steps if step.artifact.kind == "model")

    def select_models(self, origin: ModelOrigin) -> tuple[ReportedStep, ...]:
        """Return the models of an origin: those that were trained, merged, chosen or changed."""
        return tuple(model for model in self.models if model.artifact.origin == origin)

    @property
    def warnings(self) -> Iterator[tuple[str, str]]:
        """Warnings of every step: (step, warning)."""
        for step in self.steps:
            yield from ((step.name, warning) for warning in step.artifact.warnings)


def gather_report(
    of: Sequence[StepRef], workspace: Workspace, *, title: str, base: ModelRef | None = None
) -> ReportData:
    """Return the data of the report, read from the steps' results.

    Raises:
        DataError: if scores cannot be read.
    """
    steps = [_read_step(reference, workspace) for reference in of]
    details = [(one.name, one.artifact.details) for one in steps]
    report = ReportData(
        title,
        steps=tuple(steps),
        scores=tuple((s.name, read_scores(s.folder)) for s in steps if s.artifact.kind == "scores"),
        figures=tuple((s.name, s.artifact.figures) for s in steps if s.artifact.figures),
        data=tuple((name, one) for name, one in details if isinstance(one, DataDetails)),
        provenance=workspace.provenance,
        recipe=_read_text(workspace.store.parent / RECIPE_FILE),
    )
    if base is None:
        return report
    base_model = workspace.model(base)
    return replace(
        report,
        base=base_model.name,
        steps=tuple(
            _add_distances(step, base_model, workspace) if step.artifact.kind == "model" else step
            for step in steps
        ),
    )


def _add_distances(step: ReportedStep, base: Model, workspace: Workspace) -> ReportedStep:
    """Return a model's step with its distances from a base, or the reason why there are none."""
    workspace.progress(0, 1, "models", f"distances of {step.name}")
    try:
        model = workspace.model(ModelRef(f"${step.name}"))
        return replace(step, distances=measure_distances(base, model, workspace.machine))
    except EmbergeError as error:
        return replace(step, no_distances=str(error))


def _read_step(reference: StepRef, workspace: Workspace) -> ReportedStep:
    """Return a step with its result and the record that the runner wrote next to it."""
    folder, artifact = workspace.artifact(reference)
    record = read_record(folder / ARTIFACT)
    seconds = record.get("seconds")
    return ReportedStep(
        reference.step or folder.name,
        folder,
        artifact,
        component=str(record.get("component", "")),
        fingerprint=str(record.get("fingerprint", "")),
        seconds=seconds if isinstance(seconds, int | float) else None,
        curves=read_curves(folder / METRICS_FILE) if artifact.kind == "model" else {},
    )


def _read_text(path: Path) -> str:
    """Return the text of a file; "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def read_curves(path: Path) -> Mapping[str, Points]:
    """Return every logged metric by name, as points (at, value) sorted by `at`.

    A resumed training repeats some steps; the last record of a step counts. A line that is not a complete
    record, such as the last one of a killed run, is ignored. Without `at` the number of the record is used.
    Values may be NaN or infinite.
    """
    curves: dict[str, dict[float, float]] = {}
    for line in _read_text(path).splitlines():
        try:
            record = json.loads(line)
            name, value, at = record["name"], float(record["value"]), record.get("at")
            curve = curves.setdefault(name, {})
            curve[float(len(curve) if at is None else at)] = value
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return {name: sorted(curve.items()) for name, curve in curves.items()}


@dataclass(frozen=True, slots=True)
class LayerDistances:
    """Distances ‖W − W₀‖ / ‖W₀‖ (Frobenius) by layer and in total; `left_out` has unmatched tensors."""

    layers: Mapping[str, float]
    total: float
    left_out: tuple[str, ...] = ()


def measure_distances(base: Model, model: Model, machine: Machine | None = None) -> LayerDistances:
    """Return a model's distances from its base, over all floating-point weights, also of norm layers.

    Raises:
        CheckpointError: if a folder has no safetensors, or the models have no tensor in common.
    """
    from emberge_statistics import compare_weights

    comparison = compare_weights(base, model, machine=machine)
    return LayerDistances(
        layers={layer: sums.distance for layer, sums in comparison.sum_layers().items()},
        total=comparison.sum_all().distance,
        left_out=comparison.left_out,
    )
