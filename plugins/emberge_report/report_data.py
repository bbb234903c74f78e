"""Data of a report, gathered from the folders of the steps that it is about."""

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
class Done:
    """Step that the report is about: its component, its duration, its fingerprint."""

    name: str
    component: str = ""
    seconds: float | None = None
    fingerprint: str = ""


@dataclass(frozen=True)
class Made:
    """Model that a step of the run made."""

    name: str
    folder: Path
    artifact: Artifact
    curves: Mapping[str, Curve] = field(default_factory=dict)
    seconds: float | None = None
    distances: Distances | None = None
    no_distances: str = ""
    """Why there are no distances."""
    kin: str = ""
    """Sentence on how alike the parents of a merge changed."""

    @property
    def details(self) -> Mapping[str, Any]:
        """Details that the step's artifact states."""
        return self.artifact.details

    @property
    def parents(self) -> tuple[str, ...]:
        """Models it came from, by their names in tables."""
        return tuple(parent.removeprefix("$") for parent in self.artifact.parents)

    @property
    def merged(self) -> bool:
        """Flag of a model that a merge made."""
        return "strategy" in self.details

    @property
    def chosen(self) -> bool:
        """Flag of a model that was chosen from others."""
        return "chosen_because" in self.details

    @property
    def trained(self) -> bool:
        """Flag of a model that was neither merged nor chosen, nor changed in a way that its step names."""
        return not (self.merged or self.chosen or "made_by" in self.details)


@dataclass(frozen=True)
class ReportData:
    """Data that a page shows. `base` is the name of the model that distances are measured from."""

    title: str
    made: tuple[Made, ...] = ()
    scores: tuple[tuple[str, Scores], ...] = ()
    figures: tuple[tuple[str, list[Figure]], ...] = ()
    data: tuple[ChangedData, ...] = ()
    others: tuple[tuple[str, Artifact], ...] = ()
    done: tuple[Done, ...] = ()
    base: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    recipe: str = ""

    @property
    def trained(self) -> tuple[Made, ...]:
        """Models that trainings made."""
        return tuple(made for made in self.made if made.trained)

    @property
    def merges(self) -> tuple[Made, ...]:
        """Models that merges made."""
        return tuple(made for made in self.made if made.merged)

    @property
    def choices(self) -> tuple[Made, ...]:
        """Models that were chosen from others; their figures show why."""
        return tuple(made for made in self.made if made.chosen)

    @property
    def warnings(self) -> Iterator[tuple[str, str]]:
        """Warnings of every step: (step, warning)."""
        for name, artifact in (*((m.name, m.artifact) for m in self.made), *self.others):
            for warning in artifact.warnings:
                yield name, warning


def gather(
    steps: Sequence[StepRef], workspace: Workspace, *, title: str, base: ModelRef | None = None
) -> ReportData:
    """Read what the steps left, and return it.

    Raises:
        DataError: for scores or figures that cannot be read.
    """
    story = ReportData(
        title, provenance=workspace.provenance, recipe=_read_recipe(workspace.store.parent)
    )
    made: list[Made] = []
    for reference in steps:
        folder, artifact = workspace.artifact(reference)
        name = reference.step or folder.name
        done = _read_done(name, folder)
        story = replace(story, done=(*story.done, done))
        if drawn := read_figures(name, folder, artifact):
            story = replace(story, figures=(*story.figures, (name, drawn)))
        if changes := read_changes(name, folder, artifact):
            story = replace(story, data=(*story.data, changes))
        if artifact.kind == "model":
            made.append(Made(name, folder, artifact, read_curves(folder / METRICS), done.seconds))
            continue
        if artifact.kind == "scores":
            story = replace(story, scores=(*story.scores, (name, read_scores(folder))))
        story = replace(story, others=(*story.others, (name, artifact)))
    given = workspace.model(base) if base is not None else None
    measured = []
    for i, one in enumerate(made):
        workspace.progress(i, len(made), "models", f"distances of {one.name}")
        measured.append(_add_distances(one, given, made, workspace, steps[0].folder))
    measured = list(_add_kinship(measured, given, workspace, steps[0].folder))
    return replace(
        story, made=tuple(measured), base=given.name if given else _find_one_base(measured)
    )


def _read_done(name: str, folder: Path) -> Done:
    """Return the step's record, which the runner wrote beside the artifact."""
    try:
        found = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Done(name)
    return Done(
        name,
        str(found.get("component", "")),
        found.get("seconds"),
        str(found.get("fingerprint", "")),
    )


def _read_recipe(out: Path) -> str:
    try:
        return (out / RECIPE).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _add_distances(
    made: Made, given: Model | None, everyone: Sequence[Made], workspace: Workspace, beside: Path
) -> Made:
    """Return the data with each layer's distance from the base; `beside` is the recipe's folder."""
    try:
        base = given or _find_base(made, everyone, workspace, beside)
        if base is None:
            return replace(made, no_distances="its base is not known; give the report a `base`")
        found = layer_distances(base, workspace.model(_refer_to(made)), workspace.machine)
        return replace(made, distances=found)
    except EmbergeError as error:
        return replace(made, no_distances=str(error))


def _add_kinship(
    made: Sequence[Made], given: Model | None, workspace: Workspace, beside: Path
) -> Iterator[Made]:
    """Yield the models, merges with how alike their parents changed, where these are of the run too."""
    named = {one.name: one for one in made}
    known: dict[tuple[str, ...], str] = {}
    for one in made:
        parents = one.parents if one.merged else ()
        if len(parents) > 1 and all(name in named for name in parents) and parents not in known:
            try:
                base = given or _find_base(one, made, workspace, beside)
                models = [workspace.model(_refer_to(named[name])) for name in parents]
                known[parents] = kinship(base, models, workspace.machine) if base else ""
            except EmbergeError:
                known[parents] = ""  # why is beside the distances
        yield replace(one, kin=known.get(parents, ""))


def _refer_to(made: Made) -> ModelRef:
    return ModelRef(f"${made.name}")


def _find_base(
    made: Made, everyone: Sequence[Made], workspace: Workspace, beside: Path
) -> Model | None:
    """Return the base that a training started from, or the one that all parents of a merge started from.

    Raises:
        CheckpointError: when it is not there any more, or is another model now.
    """
    bases = _find_bases(made, {one.name: one for one in everyone})
    if len(bases) != 1:
        return None
    reference, content = bases.pop()
    name = reference.removeprefix("$")
    known = {one.name for one in everyone}
    if name not in known and not reference.startswith(_PLACES) and "/" not in reference:
        return None  # the name of a folder, which does not lead to it
    found = workspace.model(ModelRef(f"${name}" if name in known else reference, beside))
    if content and found.fingerprint != content:
        raise CheckpointError(f"'{name}' is another model now than when it was trained on")
    return found


def _find_bases(made: Made, known: Mapping[str, Made]) -> set[tuple[str, str]]:
    """Return (reference, content hash) of the models that trainings behind this model started from."""
    base = made.details.get("base_reference") or made.details.get("base")
    if isinstance(base, str) and base:
        return {(base, str(made.details.get("base_fingerprint", "")))}
    parents = [known[parent] for parent in made.parents if parent in known]
    if len(parents) < len(made.parents):
        return set()
    return {b for parent in parents if parent.name != made.name for b in _find_bases(parent, known)}


def _find_one_base(made: Sequence[Made]) -> str | None:
    names = {one.distances.base for one in made if one.distances}
    return names.pop() if len(names) == 1 else None


def read_curves(path: Path) -> Mapping[str, Curve]:
    """Return every logged metric by name, as points (at, value) sorted by `at`.

    A training that was continued repeats some steps; the last word on a step counts. A line that is not a
    whole record, such as the last one of a killed run, is left out. Without `at`, the number of the record
    serves. Values may be NaN or infinite.
    """
    found: dict[str, dict[float, float]] = {}
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    for line in lines:
        record = _read_record(line)
        if record is None:
            continue
        curve = found.setdefault(record["name"], {})
        at = record.get("at")
        curve[float(len(curve) if at is None else at)] = float(record["value"])
    return {name: sorted(curve.items()) for name, curve in found.items()}


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
    """‖W − W₀‖ / ‖W₀‖ (Frobenius) by layer and over all; `left_out` names tensors without their like.

    `base` is the name of the model measured from.
    """

    base: str
    layers: Mapping[str, float]
    total: float
    left_out: tuple[str, ...] = ()


def layer_distances(base: Model, model: Model, machine: Machine | None = None) -> Distances:
    """Return distances of a model's floating-point weights from its base's, norms and biases too.

    Raises:
        CheckpointError: when a folder has no safetensors, or the models have no tensor in common.
    """
    from emberge.merging import compare_weights

    found = compare_weights(base, model, machine=machine)
    return Distances(
        base=base.name,
        layers={layer: sums.distance for layer, sums in found.whole_layers().items()},
        total=found.total().distance,
        left_out=found.left_out,
    )


def kinship(base: Model, parents: Sequence[Model], machine: Machine | None = None) -> str:
    """Return a sentence on how alike the parents of a merge changed from the base; "" where they did not.

    Raises:
        CheckpointError: when a folder has no safetensors, or the models have no tensor in common.
    """
    from emberge.merging import compare_weights, kinship_words

    cosines = []
    for first, second in combinations(parents[:_MOST], 2):
        cosine = compare_weights(first, second, base, machine=machine).change_cosine()
        cosines += [] if cosine is None else [cosine]
    return kinship_words(cosines)
