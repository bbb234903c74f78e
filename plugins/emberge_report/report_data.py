"""Data of a report, read from the folders of its steps."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import CheckpointError, EmbergeError, ModelRef
from emberge.evaluating import Scores, read_scores

from emberge_report.charts.line_chart import Curve
from emberge_report.page.data_section import ChangedData, read_changes
from emberge_report.page.figures import Figure, read_figures

if TYPE_CHECKING:
    from emberge import Artifact, Machine, Model, StepRef, Workspace


# What a run keeps beside the results, and in each of them.
RECIPE, METRICS, RECORD = "recipe.yaml", "metrics.jsonl", "artifact.json"
_PLACES = ("$", "pkg:", "./", "../", "/", "~")


@dataclass(frozen=True)
class FinishedStep:
    """Step of the report with its component, duration and fingerprint."""

    name: str
    component: str = ""
    seconds: float | None = None
    fingerprint: str = ""


@dataclass(frozen=True)
class ModelOfRun:
    """Model that a step of the run made."""

    name: str
    folder: Path
    artifact: Artifact
    curves: Mapping[str, Curve] = field(default_factory=dict)
    seconds: float | None = None
    distances: Distances | None = None
    no_distances: str = ""
    """Reason why there are no distances."""
    kinship_note: str = ""
    """Sentence on the similarity of the changes of a merge's parents."""

    @property
    def details(self) -> Mapping[str, Any]:
        """Details that the step's artifact states."""
        return self.artifact.details

    @property
    def parents(self) -> tuple[str, ...]:
        """Names of the models that this one was made from."""
        return tuple(parent.removeprefix("$") for parent in self.artifact.parents)

    @property
    def merged(self) -> bool:
        """True for a model made by a merge."""
        return "strategy" in self.details

    @property
    def chosen(self) -> bool:
        """True for a model that was selected from others."""
        return "chosen_because" in self.details

    @property
    def trained(self) -> bool:
        """True for a model that was trained: neither merged, selected nor changed otherwise."""
        return not (self.merged or self.chosen or "made_by" in self.details)


@dataclass(frozen=True)
class ReportData:
    """Data of a page. `base` is the name of the model from which distances are measured."""

    title: str
    models: tuple[ModelOfRun, ...] = ()
    scores: tuple[tuple[str, Scores], ...] = ()
    figures: tuple[tuple[str, list[Figure]], ...] = ()
    data: tuple[ChangedData, ...] = ()
    others: tuple[tuple[str, Artifact], ...] = ()
    done: tuple[FinishedStep, ...] = ()
    base: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    recipe: str = ""

    @property
    def trained(self) -> tuple[ModelOfRun, ...]:
        """Models that trainings made."""
        return tuple(model for model in self.models if model.trained)

    @property
    def merges(self) -> tuple[ModelOfRun, ...]:
        """Models that merges made."""
        return tuple(model for model in self.models if model.merged)

    @property
    def choices(self) -> tuple[ModelOfRun, ...]:
        """Models that were selected from others."""
        return tuple(model for model in self.models if model.chosen)

    @property
    def warnings(self) -> Iterator[tuple[str, str]]:
        """Warnings of every step: (step, warning)."""
        for name, artifact in (*((m.name, m.artifact) for m in self.models), *self.others):
            for warning in artifact.warnings:
                yield name, warning


def gather(
    steps: Sequence[StepRef], workspace: Workspace, *, title: str, base: ModelRef | None = None
) -> ReportData:
    """Return the data of the report, read from the steps' results.

    Raises:
        DataError: if scores or figures cannot be read.
    """
    report = ReportData(
        title, provenance=workspace.provenance, recipe=_read_recipe(workspace.store.parent)
    )
    models: list[ModelOfRun] = []
    for reference in steps:
        folder, artifact = workspace.artifact(reference)
        name = reference.step or folder.name
        done = _read_done(name, folder)
        report = replace(report, done=(*report.done, done))
        if drawn := read_figures(name, artifact):
            report = replace(report, figures=(*report.figures, (name, drawn)))
        if changes := read_changes(name, folder, artifact):
            report = replace(report, data=(*report.data, changes))
        if artifact.kind == "model":
            models.append(
                ModelOfRun(name, folder, artifact, read_curves(folder / METRICS), done.seconds)
            )
            continue
        if artifact.kind == "scores":
            report = replace(report, scores=(*report.scores, (name, read_scores(folder))))
        report = replace(report, others=(*report.others, (name, artifact)))
    given_base = workspace.model(base) if base is not None else None
    models_with_distances = []
    for i, model in enumerate(models):
        workspace.progress(i, len(models), "models", f"distances of {model.name}")
        models_with_distances.append(
            _add_distances(model, given_base, models, workspace, steps[0].folder)
        )
    models_with_distances = list(
        _add_kinship(models_with_distances, given_base, workspace, steps[0].folder)
    )
    return replace(
        report,
        models=tuple(models_with_distances),
        base=given_base.name if given_base else _find_one_base(models_with_distances),
    )


def _read_done(name: str, folder: Path) -> FinishedStep:
    """Return the step's facts from the record that the runner wrote next to the artifact."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return FinishedStep(name)
    return FinishedStep(
        name,
        str(record.get("component", "")),
        record.get("seconds"),
        str(record.get("fingerprint", "")),
    )


def _read_recipe(out: Path) -> str:
    try:
        return (out / RECIPE).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _add_distances(
    model: ModelOfRun,
    given_base: Model | None,
    models: Sequence[ModelOfRun],
    workspace: Workspace,
    recipe_folder: Path,
) -> ModelOfRun:
    """Return the model with each layer's distance from the base, or the reason why there is none."""
    try:
        base = given_base or _find_base(model, models, workspace, recipe_folder)
        if base is None:
            return replace(model, no_distances="its base is not known; give the report a `base`")
        distances = layer_distances(
            base, workspace.model(_build_reference(model)), workspace.machine
        )
        return replace(model, distances=distances)
    except EmbergeError as error:
        return replace(model, no_distances=str(error))


def _add_kinship(
    models: Sequence[ModelOfRun],
    given_base: Model | None,
    workspace: Workspace,
    recipe_folder: Path,
) -> Iterator[ModelOfRun]:
    """Yield the models; a merge of the run's models gets a sentence on its parents' similarity."""
    models_by_name = {model.name: model for model in models}
    kinship_by_parents: dict[tuple[str, ...], str] = {}
    for model in models:
        parents = model.parents if model.merged else ()
        if (
            len(parents) > 1
            and all(name in models_by_name for name in parents)
            and parents not in kinship_by_parents
        ):
            try:
                base = given_base or _find_base(model, models, workspace, recipe_folder)
                parent_models = [
                    workspace.model(_build_reference(models_by_name[name])) for name in parents
                ]
                kinship_by_parents[parents] = (
                    kinship(base, parent_models, workspace.machine) if base else ""
                )
            except EmbergeError:
                kinship_by_parents[parents] = ""  # why is beside the distances
        yield replace(model, kinship_note=kinship_by_parents.get(parents, ""))


def _build_reference(model: ModelOfRun) -> ModelRef:
    return ModelRef(f"${model.name}")


def _find_base(
    model: ModelOfRun, models: Sequence[ModelOfRun], workspace: Workspace, recipe_folder: Path
) -> Model | None:
    """Return the base of a training, or the common base of a merge's parents; None without one.

    Raises:
        CheckpointError: if the base is missing or has changed.
    """
    bases = _find_bases(model, {other.name: other for other in models})
    if len(bases) != 1:
        return None
    reference, content = bases.pop()
    name = reference.removeprefix("$")
    names = {other.name for other in models}
    if name not in names and not reference.startswith(_PLACES) and "/" not in reference:
        return None  # the name of a folder, which does not lead to it
    base = workspace.model(ModelRef(f"${name}" if name in names else reference, recipe_folder))
    if content and base.fingerprint != content:
        raise CheckpointError(f"'{name}' is another model now than when it was trained on")
    return base


def _find_bases(
    model: ModelOfRun, models_by_name: Mapping[str, ModelOfRun]
) -> set[tuple[str, str]]:
    """Return (reference, content hash) of the models from which the trainings behind this model started."""
    base = model.details.get("base_reference") or model.details.get("base")
    if isinstance(base, str) and base:
        return {(base, str(model.details.get("base_fingerprint", "")))}
    parents = [models_by_name[parent] for parent in model.parents if parent in models_by_name]
    if len(parents) < len(model.parents):
        return set()
    return {
        b
        for parent in parents
        if parent.name != model.name
        for b in _find_bases(parent, models_by_name)
    }


def _find_one_base(models: Sequence[ModelOfRun]) -> str | None:
    names = {model.distances.base for model in models if model.distances}
    return names.pop() if len(names) == 1 else None


def read_curves(path: Path) -> Mapping[str, Curve]:
    """Return every logged metric by name, as points (at, value) sorted by `at`.

    A resumed training repeats some steps; the last record of a step counts. A line that is not a complete
    record, such as the last one of a killed run, is ignored. Without `at` the number of the record is used.
    Values may be NaN or infinite.
    """
    curves: dict[str, dict[float, float]] = {}
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    for line in lines:
        record = _read_record(line)
        if record is None:
            continue
        curve = curves.setdefault(record["name"], {})
        at = record.get("at")
        curve[float(len(curve) if at is None else at)] = float(record["value"])
    return {name: sorted(curve.items()) for name, curve in curves.items()}


def _read_record(line: str) -> Mapping[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("name"), str):
        return None
    numbers = [record.get("value"), record.get("at")]
    value, at = (None if isinstance(n, bool) else n for n in numbers)
    fits = isinstance(value, int | float) and isinstance(at, int | float | None)
    return record if fits else None


# Parents of a merge whose changes are compared pair by pair; further ones would add little.
_MOST = 5


@dataclass(frozen=True, slots=True)
class Distances:
    """Distances ‖W − W₀‖ / ‖W₀‖ (Frobenius) by layer and in total; `left_out` has unmatched tensors.

    `base` is the name of the model measured from.
    """

    base: str
    layers: Mapping[str, float]
    total: float
    left_out: tuple[str, ...] = ()


def layer_distances(base: Model, model: Model, machine: Machine | None = None) -> Distances:
    """Return distances of a model's floating-point weights from its base's, norms and biases too.

    Raises:
        CheckpointError: if a folder has no safetensors, or the models have no tensor in common.
    """
    from emberge.merging import compare_weights

    comparison = compare_weights(base, model, machine=machine)
    return Distances(
        base=base.name,
        layers={layer: sums.distance for layer, sums in comparison.whole_layers().items()},
        total=comparison.total().distance,
        left_out=comparison.left_out,
    )


def kinship(base: Model, parents: Sequence[Model], machine: Machine | None = None) -> str:
    """Return a sentence on the similarity of the parents' changes from the base; "" if they did not change.

    Raises:
        CheckpointError: if a folder has no safetensors, or the models have no tensor in common.
    """
    from emberge.merging import compare_weights, kinship_words

    cosines = []
    for first, second in combinations(parents[:_MOST], 2):
        cosine = compare_weights(first, second, base, machine=machine).change_cosine()
        cosines += [] if cosine is None else [cosine]
    return kinship_words(cosines)
