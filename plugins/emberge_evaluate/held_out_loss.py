"""The `held_out_loss` evaluator: the losses of a training on data that it was not trained on."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from emberge import (
    Backbone,
    DataEntry,
    Dataset,
    EmbergeError,
    Evaluator,
    Loss,
    Model,
    PerDataset,
    Preflight,
    Problem,
    Sampler,
    TaskInfo,
    TaskScore,
    Units,
    WholeNumber,
    Workspace,
    component,
)
from emberge.contracts import embedding_problems, loss_problems
from emberge.evaluating import safe_file_name
from emberge.training import BatchOptions

if TYPE_CHECKING:
    from emberge.data import CheckedData
    from emberge.training import FitJob


LOSS = "loss"  # the metric of a task of which less is better


@dataclass(frozen=True, kw_only=True)
class HeldOutLoss(BatchOptions, Evaluator):
    """Mean loss over batches of held-out data; each data set is a task with the metric `loss`.

    Options of batches and losses are those of a training. With the same options as the training, the loss is
    the one that early stopping by a development loss uses (Prechelt, 1998, in Neural Networks: Tricks of the
    Trade). Dropout is off, and every model gets the same batches. `data` must be development data only.

    Example:
        best:
          select:
            models: [./run-1, ./run-2]
            evaluators: {held_out_loss: {data: ./dev.jsonl, loss: infonce}}
            metric: loss
            top: 1
    """

    data: tuple[DataEntry, ...]
    """Held-out data: files, catalogues or steps that make data."""
    loss: PerDataset[tuple[Loss, ...]]
    """A weighted sum of losses for every task or dataset."""
    sampler: tuple[Sampler, ...] = component("batch_shuffle", batch_size=32, tail="keep")
    """Sampler, or chain of samplers, that makes batches of the data."""
    backbone: Backbone = component("text_encoder")
    """Backbone that loads the checkpoint."""
    seed: WholeNumber = 0
    """Seed of the batches."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        for sampler in self.sampler:
            yield from sampler.check(context)
        yield from self._check_guides(context)
        checked = self._check_data(context)
        for problem in checked.problems:
            yield dataclasses.replace(problem, where=problem.where or context.where("evaluators"))
        for head in checked.heads:
            scored = head.example.positive_scores is not None
            for fault in loss_problems(self.loss, head.info, scored=scored):
                yield context.problem(fault, "evaluators")
        if not checked.problems and not any(sampler.files() for sampler in self.sampler):
            yield from self._look_ahead(context)

    def check_model(self, checkpoint: Path, context: Preflight) -> Iterable[str]:
        facts = self.backbone.describe(checkpoint)
        harm = facts.problems or facts.training_problems
        return [*harm, *embedding_problems(self.loss, facts)]

    def _check_guides(self, context: Preflight) -> Iterator[Problem]:
        losses = [self.loss.default, *self.loss.by_task.values(), *self.loss.by_dataset.values()]
        guides = (loss.guided_by for several in losses for loss in several or ())
        for guide in (guide for guide in guides if guide is not None):
            for folder in filter(None, map(context.model, guide.models)):
                for message in guide.choose_backbone(self.backbone).describe(folder).problems:
                    yield context.problem(f"guide: {message}", "evaluators")

    def _look_ahead(self, context: Preflight) -> Iterator[Problem]:
        """Check the data sets that can be read quickly before the run, and yield their problems."""
        from emberge.training import FitOptions, preview_training

        try:
            training_preview = preview_training(
                self.data,
                readers=context.readers,
                resolve=context.data,
                sampler=self.sampler,
                losses=self.loss,
                options=FitOptions.of(self),
                seed=self.seed,
            )
        except EmbergeError as error:
            for line in str(error).splitlines():
                yield context.problem(line, "evaluators")
            return
        for info in training_preview.datasets:
            for fault in loss_problems(self.loss, info, scored=info.scores is not None):
                yield context.problem(fault, "evaluators")

    def preview(self, context: Preflight) -> Sequence[TaskInfo] | None:
        checked = self._check_data(context)
        is_present = all(entry.path is None or context.data(entry.path) for entry in self.data)
        if checked.problems or not is_present:
            return None
        return [_make_task(head.info.name, head.info.task) for head in checked.heads]

    def _check_data(self, context: Preflight) -> CheckedData:
        from emberge.data import check_datasets

        return check_datasets(context, self.data, show=False)

    def plan(self, workspace: Workspace) -> Sequence[TaskInfo]:
        return [
            _make_task(dataset.info.name, dataset.info.task, self._hash_task(dataset, workspace))
            for dataset in self._load(workspace)
        ]

    def evaluate(
        self, model: Model, tasks: Sequence[TaskInfo], workspace: Workspace
    ) -> Iterator[TaskScore]:
        datasets = {dataset.info.name: dataset for dataset in self._load(workspace)}
        for number, task in enumerate(tasks, 1):
            with workspace.part("task", number, len(tasks), task.name):
                losses = self._measure_batches(
                    self._make_job(model.folder, datasets[task.name], workspace), workspace
                )
            units = Units("batch", "mean", losses)
            yield TaskScore(task, sum(losses) / len(losses), units, {"batches": len(losses)})

    def _measure_batches(self, job: FitJob, workspace: Workspace) -> list[float]:
        """Return the loss of each batch in order."""
        from emberge.training import open_session

        name = safe_file_name(job.datasets[0].info.name)
        with open_session(
            job,
            work=workspace.work / f"loss-{name}",
            store=workspace.store,
            machine=dataclasses.replace(workspace.machine, ranks=1, shard=False),
            progress=lambda *_: None,
            warn=workspace.warn,
        ) as session:
            batch_losses = []
            for step in range(session.plan.steps):
                batch_losses.append(float(session.backward(session.plan[step]).loss))
                session.encoder.module.zero_grad(set_to_none=True)
            return batch_losses

    def _make_job(self, folder: Path, dataset: Dataset, workspace: Workspace) -> FitJob:
        from emberge.training import FitJob, FitOptions

        return FitJob(
            backbone=self.backbone,
            checkpoint=folder,
            datasets=[dataset],
            sampler=self._list_samplers(workspace),
            losses=self.loss,
            options=FitOptions.of(self, dropout=False, precision="float32"),
            seed=self.seed,
            guides=workspace.model,
        )

    def _load(self, workspace: Workspace) -> Sequence[Dataset]:
        from emberge.data import step_datasets

        return step_datasets(workspace, self.data, warn=False)

    def _list_samplers(self, workspace: Workspace) -> list[Sampler]:
        return [sampler.resolved(workspace.data) for sampler in self.sampler]

    def _hash_task(self, dataset: Dataset, workspace: Workspace) -> str:
        """Return a hash of everything, except the model, that decides a loss: rows, options, guide models."""
        info = dataset.info
        losses = self.loss.of(info.name, info.task) or ()
        guides = [loss.guided_by for loss in losses if loss.guided_by is not None]
        decisive = (
            dataset.fingerprint,
            info.negatives,
            dataclasses.replace(self, data=()),
            self._list_samplers(workspace),
            [workspace.model(model).fingerprint for guide in guides for model in guide.models],
            version("emberge"),
        )
        return hashlib.sha256(repr(decisive).encode()).hexdigest()


def _make_task(name: str, kind: str, fingerprint: str = "") -> TaskInfo:
    return TaskInfo(name, kind, LOSS, fingerprint=fingerprint, split="dev")
