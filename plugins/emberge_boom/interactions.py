"""The `interactions` step: a study of the effect of training datasets together, and its trainings."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from emberge import (
    Artifact,
    Backbone,
    CheckpointError,
    Count,
    DataEntry,
    DataError,
    EmbergeError,
    Loss,
    ModelRef,
    PerDataset,
    Preflight,
    Problem,
    Sampler,
    Step,
    StepRef,
    WholeNumber,
    Workspace,
    component,
)
from emberge.contracts import UsedRows, from_json
from emberge.data import load_catalogue
from emberge.model_folder import TextLimit
from emberge.training import FitOptions, find_embedding_problems, find_loss_problems

from emberge_boom.study import STUDY_FILE, Study, build_study_figures, write_study


@dataclass(frozen=True, kw_only=True)
class StudyOptions(FitOptions):
    """A model, datasets, and the settings of every training of a study."""

    model: ModelRef
    """The model that every training starts from."""
    data: tuple[DataEntry, ...]
    """The datasets, each or as a catalogue; if a step writes the catalogue, `only` names its sets."""
    loss: PerDataset[tuple[Loss, ...]]
    """The losses, as for `train`."""
    sampler: tuple[Sampler, ...] = component("batch_shuffle")
    """The sampler that makes batches."""
    backbone: Backbone = component("text_encoder")
    """The recipe for turning a checkpoint into an encoder."""
    seed: WholeNumber | None = None
    """The seed of all trainings; the recipe's by default."""
    rows: Count | None = None
    """The number of rows of every dataset's sample; by default as many as the smallest has.

    With a fixed number, adding a dataset later repeats none of the finished trainings.
    """


@dataclass(frozen=True, kw_only=True)
class Interactions(StudyOptions, Step):
    """A study of datasets' synergies and conflicts: trainings on equal samples of each dataset and each pair.

    The study measures the mean loss over all steps of a training on each dataset alone (loss_i) and on each
    pair jointly (LC_ij). From these it computes LA_ij = (loss_i + loss_j) / 2, the difference LC_ij - LA_ij,
    and a distance: 1 - LC_ij / LA_ij for pairs that help one another and LC_ij / LA_ij for others. Average
    linkage makes a tree of clusters of the distances (BOOM, arXiv:2602.05787, section 5.3). The samplers
    `cluster` and `conflict` choose datasets by the study; a report shows it as a heat map and a tree.

    A joint training takes the steps of both datasets, which by itself can lower losses, and of two datasets
    the one with the larger losses dominates the result of the pair.

    Every training is a separate step, `id.alone=a` or `id.pair=a,b`, which keeps its loss and no model;
    launchers may run these steps in parallel. There are n + n (n - 1) / 2 trainings for n datasets. The
    options of training are those of `train`. The order of `data` does not matter.

    Example:
        study:
          interactions:
            model: ./base
            data: ./datasets.yaml
            loss: infonce
            rows: 2000
    """

    produces = "file"

    # The trainings' results, set by `gather`; no option.
    _runs: dict[str, StepRef] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_last:
            raise ValueError("keep_last: a study keeps no model")

    def expand(self) -> Mapping[str, Step]:
        """Return a training step for each dataset and each pair, if the datasets are known."""
        try:
            entries = split_by_set(self.data)
        except EmbergeError:
            return {"": self}  # the check reports why
        if len(entries) < 2:
            return {"": self}
        alone = {f"alone={name}": self._build_run(entries, (name,)) for name in entries}
        pairs = combinations(entries, 2)
        return {**alone, **{f"pair={a},{b}": self._build_run(entries, (a, b)) for a, b in pairs}}

    def gather(self, parts: Mapping[str, StepRef]) -> Step:
        return dataclasses.replace(self, _runs=dict(parts))

    def _build_run(self, entries: Mapping[str, DataEntry], names: Sequence[str]) -> StudyRun:
        shared_options = {f.name for f in dataclasses.fields(StudyOptions)} - {"data"}
        other_entries = () if self.rows else tuple(e for n, e in entries.items() if n not in names)
        return StudyRun(
            **{name: getattr(self, name) for name in shared_options},
            data=tuple(entries[name] for name in names),
            beside=other_entries,
        )

    def check(self, context: Preflight) -> Iterator[Problem]:
        if not self._runs:
            yield context.problem(_explain_missing_datasets(self.data), "data")
            return
        yield from self._check_model(context)
        yield from self._check_data(context)
        count = sum(name.startswith("alone=") for name in self._runs)
        pairs = len(self._runs) - count
        context.note("study", [f"{count} datasets: {count} trainings alone and {pairs} of pairs"])

    def _check_model(self, context: Preflight) -> Iterator[Problem]:
        folder = context.whole_model(self.model)
        if self.model.adapter or context.adapter(self.model):
            yield context.problem("a study starts from a whole model, not an adapter", "model")
        elif folder is not None:
            facts = self.backbone.describe(folder)
            for message in facts.problems or facts.training_problems:
                yield context.problem(message, "backbone")
            for message in find_embedding_problems(self.loss, facts):
                yield context.problem(message, "loss")
            for message in TextLimit.read(folder).describe_problems(*self.lengths):
                yield context.problem(message, "max_length")

    def _check_data(self, context: Preflight) -> Iterator[Problem]:
        from emberge.data import check_datasets

        checked = check_datasets(context, self.data)
        yield from checked.problems
        for first_rows in checked.first_rows:
            scored = first_rows.example.positive_scores is not None
            for message in find_loss_problems(self.loss, first_rows.info, scored=scored):
                yield context.problem(message, "loss")

    def run(self, workspace: Workspace) -> Artifact:
        """Write the study from the losses of the trainings.

        Raises:
            DataError: if losses cannot be compared.
        """
        if not self._runs:
            raise DataError(_explain_missing_datasets(self.data))
        runs = [workspace.artifact(reference)[1] for reference in self._runs.values()]
        study = gather_study(runs)
        write_study(workspace.folder, study)
        return Artifact(
            kind="file",
            parents=runs[0].parents,
            details={
                "file": STUDY_FILE,
                "datasets": {
                    name: {"task": study.tasks[name], "rows": study.rows, "of": study.sizes[name]}
                    for name in study.names
                },
            },
            figures=build_study_figures(study),
        )


def gather_study(runs: Sequence[Artifact]) -> Study:
    """Build the study from the artifacts of its trainings.

    Raises:
        DataError: if losses cannot be compared.
    """
    losses: dict[tuple[str, ...], float] = {}
    facts: dict[str, UsedRows] = {}
    for artifact in runs:
        assert isinstance(artifact.details, Mapping)
        datasets = from_json(dict[str, UsedRows], artifact.details["datasets"])
        facts |= datasets
        losses[tuple(sorted(datasets))] = artifact.details["mean_loss"]
    names = tuple(sorted(facts))
    return Study(
        names=names,
        tasks={name: facts[name].task for name in names},
        sizes={name: facts[name].of for name in names},
        rows=min(facts[name].rows for name in names),
        alone={name: losses[name,] for name in names},
        joint={(a, b): losses[a, b] for a, b in combinations(names, 2)},
    )


def _explain_missing_datasets(data: Sequence[DataEntry]) -> str:
    try:
        datasets = split_by_set(data)
    except EmbergeError as error:
        return str(error)
    return f"an interaction is between two datasets, and there is {len(datasets) or 'none'}"


def split_by_set(entries: Sequence[DataEntry]) -> dict[str, DataEntry]:
    """Return the data entry of each dataset by a distinct label, in alphabetical order.

    The names of a catalogue's sets are read from it; if a step of the recipe writes the catalogue, `only`
    must name the sets.

    Raises:
        DataError: if the names of the datasets cannot be known.
    """
    entries_by_label: dict[str, list[DataEntry]] = defaultdict(list)
    for whole_entry in entries:
        for name, entry in _split_entry(whole_entry):
            entries_by_label[re.sub(r"[^\w.-]+", "-", name)].append(entry)
    entry_by_label = {
        f"{label}-{number}" if len(same_label) > 1 else label: entry
        for label, same_label in entries_by_label.items()
        for number, entry in enumerate(sorted(same_label, key=repr))
    }
    return dict(sorted(entry_by_label.items()))


def _split_entry(entry: DataEntry) -> list[tuple[str, DataEntry]]:
    if entry.only:
        return [(name, dataclasses.replace(entry, only=(name,))) for name in entry.only]
    if entry.path is None:
        return [(entry.name or str(entry.hub).rpartition("/")[2], entry)]
    if entry.path.step is not None:
        raise DataError(
            f"the sets that {entry.path} will hold are not known yet; name them under `only`"
        )
    path = entry.path.folder / Path(entry.path.text).expanduser()
    if path.is_dir() or path.suffix in (".yaml", ".yml"):
        names = [str(listed.name) for listed in load_catalogue(path).train]
        return [(name, dataclasses.replace(entry, only=(name,))) for name in names]
    return [(entry.name or path.name.partition(".")[0], entry)]


@dataclass(frozen=True, kw_only=True)
class StudyRun(StudyOptions, Step):
    """Training on equal samples of some datasets that keeps the mean loss of its steps and no model.

    Each sample has `rows` rows, by default as many as the smallest dataset of `data` and `beside`.
    """

    produces = "file"
    every_rank = True

    beside: tuple[DataEntry, ...] = ()

    def run(self, workspace: Workspace) -> Artifact:
        from emberge.data import load_step_datasets
        from emberge.training import FitJob, fit

        model = workspace.model(self.model)
        if model.adapter is not None:
            raise CheckpointError(
                f"{model.name}: a study starts from a whole model, not an adapter"
            )
        compared = load_step_datasets(workspace, (*self.data, *self.beside), warn=False)
        sizes = {dataset.info.name: len(dataset) for dataset in compared}
        datasets = load_step_datasets(
            workspace, self.data, limit=choose_sample_size(self.rows, sizes)
        )
        names = [dataset.info.name for dataset in datasets]
        narrowed = PerDataset.narrow(self, names)
        job = FitJob(
            backbone=self.backbone,
            checkpoint=model.folder,
            datasets=datasets,
            sampler=[
                PerDataset.narrow(sampler.resolved(workspace.data), names)
                for sampler in self.sampler
            ],
            losses=narrowed.loss,
            options=FitOptions.of(narrowed),
            seed=workspace.seed,
        )
        result = fit(
            job,
            folder=None,
            work=workspace.work,
            store=workspace.store,
            machine=workspace.machine,
            progress=workspace.progress,
            metric=workspace.metric,
            warn=workspace.warn,
        )
        losses = [loss for _, loss in result.step_losses]
        return Artifact(
            kind="file",
            parents=(model.name,),
            details={
                "datasets": {
                    d.info.name: {"task": d.info.task, "rows": len(d), "of": sizes[d.info.name]}
                    for d in datasets
                },
                "mean_loss": sum(losses) / len(losses),
                "steps": result.steps,
                "examples": result.examples,
                "seconds": round(result.seconds, 1),
            },
        )


def choose_sample_size(rows: int | None, sizes: Mapping[str, int]) -> int:
    """Return the number of rows of every sample, given the number of rows of each dataset.

    Raises:
        DataError: if a dataset has fewer rows than the option `rows`.
    """
    smallest = min(sizes, key=lambda name: (sizes[name], name))
    smallest_size = sizes[smallest]
    if rows is not None and rows > smallest_size:
        raise DataError(
            f"the study samples {rows} rows of every dataset, and '{smallest}' has {smallest_size}; write "
            f"rows: {smallest_size}, or leave that dataset out"
        )
    return rows or smallest_size
