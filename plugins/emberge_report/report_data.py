"""Data of a report, read from the folders of its steps."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import CheckpointError, DataError, EmbergeError, ModelRef
from emberge.evaluating import Scores, read_scores

from emberge_report.figures import Figure, read_figures

if TYPE_CHECKING:
    from emberge import Artifact, Machine, Model, StepRef, Workspace


# Logged numbers (at, value), sorted by `at`.
Points = Sequence[tuple[float, float]]
# What a run keeps beside the results, and in each of them.
RECIPE, METRICS, RECORD = "recipe.yaml", "metrics.jsonl", "artifact.json"
_PLACES = ("$", "pkg:", "./", "../", "/", "~")


@dataclass(frozen=True)
class ChangedData:
    """Counts of one step by set, with notes and examples, and sentences below them."""

    step: str
    sets: Mapping[str, Mapping[str, Any]]
    sentences: tuple[str, ...] = ()


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
    def steps(self) -> int | None:
        """Number of a training's optimizer steps; None if it is unknown."""
        steps, loss = self.details.get("steps"), self.curves.get("loss")
        return steps if isinstance(steps, int) else int(loss[-1][0]) if loss else None

    @property
    def trained(self) -> bool:
        """True for a model that was trained: neither merged, selected nor changed otherwise."""
        return not (self.merged or self.chosen or "made_by" in self.details)


@dataclass(frozen=True)
class ReportData:
    """Data of a page. `base` is the name of the model from which distances are measured."""

    title: str
    steps: tuple[ReportedStep, ...] = ()
    scores: tuple[tuple[str, Scores], ...] = ()
    figures: tuple[tuple[str, list[Figure]], ...] = ()
    data: tuple[ChangedData, ...] = ()
    base: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    recipe: str = ""

    @property
    def models(self) -> tuple[ReportedStep, ...]:
        """Steps that made a model."""
        return tuple(step for step in self.steps if step.artifact.kind == "model")

    @property
    def trained(self) -> tuple[ReportedStep, ...]:
        """Models that trainings made."""
        return tuple(model for model in self.models if model.trained)

    @property
    def merges(self) -> tuple[ReportedStep, ...]:
        """Models that merges made."""
        return tuple(model for model in self.models if model.merged)

    @property
    def choices(self) -> tuple[ReportedStep, ...]:
        """Models that were selected from others."""
        return tuple(model for model in self.models if model.chosen)

    @property
    def warnings(self) -> Iterator[tuple[str, str]]:
        """Warnings of every step: (step, warning)."""
        for step in self.steps:
            yield from ((step.name, warning) for warning in step.artifact.warnings)


def gather(
    of: Sequence[StepRef], workspace: Workspace, *, title: str, base: ModelRef | None = None
) -> ReportData:
    """Return the data of the report, read from the steps' results.

    Raises:
        DataError: if scores or figures cannot be read.
    """
    steps = [_read_step(reference, workspace) for reference in of]
    figures = [(one.name, read_figures(one.name, one.artifact.details)) for one in steps]
    changes = [read_changes(one.name, one.folder, one.artifact) for one in steps]
    report = ReportData(
        title,
        steps=tuple(steps),
        scores=tuple((s.name, read_scores(s.folder)) for s in steps if s.artifact.kind == "scores"),
        figures=tuple((name, found) for name, found in figures if found),
        data=tuple(filter(None, changes)),
        provenance=workspace.provenance,
        recipe=_read_text(workspace.store.parent / RECIPE),
    )
    measured = list(_Measurer(workspace, of[0].folder, base, report.models).measure())
    found = {model.name: model for model in measured}
    bases = {model.distances.base for model in measured if model.distances}
    stated = workspace.model(base).name if base is not None else None
    return replace(
        report,
        steps=tuple(found.get(one.name, one) for one in steps),
        base=stated or (bases.pop() if len(bases) == 1 else None),
    )


def _read_step(reference: StepRef, workspace: Workspace) -> ReportedStep:
    """Return a step with its result and the record that the runner wrote next to it."""
    folder, artifact = workspace.artifact(reference)
    try:
        record = json.loads(_read_text(folder / RECORD))
    except ValueError:
        record = {}
    return ReportedStep(
        reference.step or folder.name,
        folder,
        artifact,
        component=str(record.get("component", "")),
        fingerprint=str(record.get("fingerprint", "")),
        seconds=record.get("seconds"),
        curves=read_curves(folder / METRICS) if artifact.kind == "model" else {},
    )


def _read_text(path: Path) -> str:
    """Return the text of a file; "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def read_changes(step: str, folder: Path, artifact: Artifact) -> ChangedData | None:
    """Return the `changes` of a step's artifact with the examples of its file; None without.

    Raises:
        DataError: if the file cannot be read.
    """
    sets = artifact.details.get("changes")
    if not isinstance(sets, Mapping):
        return None
    file = artifact.details.get("examples")
    if isinstance(file, str):
        try:
            sets = json.loads((folder / file).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"'{step}': {file} cannot be read ({error})") from None
    return ChangedData(step, sets, tuple(map(str, artifact.details.get("sentences") or ())))


@dataclass(frozen=True)
class _Measurer:
    """Measurement of models' distances from `base`, or from the base of each, and of merges' parents."""

    workspace: Workspace
    recipe_folder: Path
    base: ModelRef | None
    models: Sequence[ReportedStep]

    def measure(self) -> Iterator[ReportedStep]:
        """Yield the models, each with its layers' distances or the reason why there are none.

        A merge of the run's models gets a sentence on the similarity of its parents' changes.
        """
        kinships: dict[tuple[str, ...], str] = {}
        for i, model in enumerate(self.models):
            self.workspace.progress(i, len(self.models), "models", f"distances of {model.name}")
            parents = model.parents if model.merged else ()
            try:
                base = self._find_base(model)
                if base is None:
                    reason = "its base is not known; give the report a `base`"
                    yield replace(model, no_distances=reason)
                    continue
                found = layer_distances(base, self._open(model.name), self.workspace.machine)
                if parents not in kinships:
                    kinships[parents] = self._describe_kinship(base, parents)
                yield replace(model, distances=found, kinship_note=kinships[parents])
            except EmbergeError as error:
                yield replace(model, no_distances=str(error))

    def _describe_kinship(self, base: Model, parents: Sequence[str]) -> str:
        known = {model.name for model in self.models}
        if len(parents) < 2 or not known.issuperset(parents):
            return ""
        try:
            return kinship(base, [*map(self._open, parents)], self.workspace.machine)
        except EmbergeError:
            return ""  # why is beside the distances

    def _open(self, name: str) -> Model:
        return self.workspace.model(ModelRef(f"${name}"))

    def _find_base(self, model: ReportedStep) -> Model | None:
        """Return the base of a training, or the common base of a merge's parents; None without one.

        Raises:
            CheckpointError: if the base is missing or has changed.
        """
        if self.base is not None:
            return self.workspace.model(self.base)
        models = {other.name: other for other in self.models}
        bases = _find_bases(model, models)
        if len(bases) != 1:
            return None
        reference, content = bases.pop()
        name = reference.removeprefix("$")
        if name in models:
            base = self._open(name)
        elif not reference.startswith(_PLACES) and "/" not in reference:
            return None  # the name of a folder, which does not lead to it
        else:
            base = self.workspace.model(ModelRef(reference, self.recipe_folder))
        if content and base.fingerprint != content:
            raise CheckpointError(f"'{name}' is another model now than when it was trained on")
        return base


def _find_bases(
    model: ReportedStep, models_by_name: Mapping[str, ReportedStep]
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


# Parents of a merge whose changes are compared pair by pair; further ones would add little.
_MOST = 5
# Mean cosines of changes from a common base. MiniLM trained for an epoch on 60 % of the same 640 rows, twice,
# has 0.21; of eight trained on one data set each all pairs are within 0.02 of 0.
_SIBLINGS, _STRANGERS = 0.15, 0.05


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
    from emberge_statistics import compare_weights

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
    from emberge_statistics import compare_weights

    cosines = []
    for first, second in combinations(parents[:_MOST], 2):
        cosine = compare_weights(first, second, base, machine=machine).change_cosine()
        cosines += [] if cosine is None else [cosine]
    return kinship_words(cosines)


def kinship_words(cosines: Sequence[float]) -> str:
    """Return a plain sentence on the cosines of models' changes, pair by pair; "" without any."""
    if not cosines:
        return ""
    mean = sum(cosines) / len(cosines)
    low, high = f"{min(cosines):.2f}", f"{max(cosines):.2f}"
    numbers = f"cosine of their changes {low if low == high else f'{low} to {high}'}"
    if mean >= _SIBLINGS:
        return f"siblings, {numbers}: a merge is close to their ensemble, and methods differ little"
    if mean < _STRANGERS:
        return (
            f"strangers, {numbers}: an average undoes part of what each learned, and methods matter"
        )
    return f"relatives, {numbers}: they changed partly alike"
