"""One training of a study, on one dataset or two; its mean loss is kept, but no model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from emberge import (
    Artifact,
    Backbone,
    CheckpointError,
    Count,
    DataEntry,
    DataError,
    Loss,
    ModelRef,
    PerDataset,
    Sampler,
    Step,
    WholeNumber,
    Workspace,
    component,
)
from emberge.training import FitOptions


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
