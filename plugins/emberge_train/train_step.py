"""The `train` step: fine-tune one model on datasets."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import (
    ALL_KINDS,
    Artifact,
    Backbone,
    CheckpointError,
    ModelRef,
    Preflight,
    Problem,
    Step,
    Workspace,
)
from emberge.contracts import AdapterFacts, TrainingDetails, UsedRows
from emberge.options import write_value
from emberge.training import FitOptions, FitResult

from emberge_train.train_options import TrainOptions

if TYPE_CHECKING:
    from emberge.data import StoredDataset

# What the details of a trained model have as the recipe has it.
_RECIPE_OPTIONS = ("loss", "sampler", "max_length")


@dataclass(frozen=True, kw_only=True)
class Train(TrainOptions, Step):
    """Training of one model on datasets; the sampler decides which rows are in each optimizer step.

    If transformers' TrainingArguments have an option, its name is the same here.

    Trainings with equal data, lengths, sampler, seed, number of steps and tokenizer use the same rows in the
    same order, independent of their ids, losses, models and learning rates. So the arms of an ablation differ
    only in the option that was changed.

    At each logged point `metrics.jsonl` gets `loss`, `loss/<dataset>` and `task_loss/<task>`
    as means since the previous logged point, `tokens_per_second` without padding, `padding_share` and
    `kept_share` of the tokens that the model was run on, the peak memory until then (`memory_gib`, and
    `gpu_memory_gib` for tensors on the GPU), the norm of gradients, the learning rate and the number of
    examples.

    The result is a SentenceTransformers folder with `checkpoints/step-N`. If the backbone trains an adapter,
    the result is the adapter, and `$id` means the model with the adapter.

    Example:
        trained:
          train:
            model: ./base
            data: ./pairs.jsonl
            loss: infonce
            sampler: {batch_shuffle: {batch_size: 64}}
            epochs: 1
    """

    produces = "model"
    embedding_kinds = ALL_KINDS
    every_rank = True
    loads = ("torch",)

    def find_adapted_model(self) -> ModelRef | None:
        return self.model if self.backbone.leaves_adapter else None

    def check(self, context: Preflight) -> Iterable[Problem]:
        from emberge_train.training_check import TrainingCheck

        return TrainingCheck(self, context).find_problems()

    def run(self, workspace: Workspace) -> Artifact:
        from emberge.data import load_step_datasets
        from emberge.training import FitJob, fit

        from emberge_train.guides import GuideReader

        model = workspace.model(self.model)
        if model.adapter is not None:
            raise CheckpointError(
                f"{model.name}: training starts from a whole model, not an adapter; merge it first"
            )
        workspace.progress(0, 0, note="loading rows")
        datasets = load_step_datasets(workspace, self.data)
        sampler = [part.resolved(workspace.data) for part in self.sampler]
        job = FitJob(
            backbone=self.backbone,
            checkpoint=model.folder,
            datasets=datasets,
            sampler=sampler,
            losses=self.loss,
            options=FitOptions.of(self),
            seed=workspace.seed,
            guides=GuideReader(self.loss, workspace.model, self.backbone),
        )
        result = fit(
            job,
            folder=workspace.folder,
            work=workspace.work,
            store=workspace.store,
            machine=workspace.machine,
            progress=workspace.progress,
            metric=workspace.metric,
            warn=workspace.warn,
        )
        return Artifact(
            kind="model",
            size=sum(result.rows_by_dataset.values()),
            parents=(model.name,),
            details=self._describe_training(datasets, result, workspace),
            base=model.as_base(self.model),
            adapter=_read_adapter_ranks(workspace.folder) if self.backbone.leaves_adapter else None,
            figures=result.figures,
        )

    def _describe_training(
        self,
        datasets: Sequence[StoredDataset],
        result: FitResult,
        workspace: Workspace,
    ) -> TrainingDetails:
        return TrainingDetails(
            datasets=_describe_used_rows(datasets, result),
            seed=workspace.seed,
            ranks=workspace.machine.ranks,
            examples=result.examples,
            steps=result.steps,
            seconds=round(result.seconds, 3),
            cpu_seconds=round(result.cpu_seconds, 3),
            last_loss=result.last_loss,
            checkpoints=[path.as_posix() for path in result.checkpoints],
            backbone=_list_changed_options(self.backbone),
            learning_rate=self.learning_rate,
            **{name: self._write_option(name, workspace) for name in _RECIPE_OPTIONS},
        )

    def _write_option(self, name: str, workspace: Workspace) -> Any:
        """Return an option as the recipe writes it, a list of one as its entry."""
        value = write_value(getattr(self, name), workspace.plugins)
        return value[0] if isinstance(value, list) and len(value) == 1 else value


def _list_changed_options(backbone: Backbone) -> dict[str, Any]:
    """Return the options that differ from their defaults, options of an inner backbone last."""
    changed: dict[str, Any] = {}
    inner: dict[str, Any] = {}
    for option in dataclasses.fields(backbone):
        value = getattr(backbone, option.name)
        if isinstance(value, Backbone):
            inner |= _list_changed_options(value)
        elif value not in (option.default, {}):
            nested = is_dataclass(value) and not isinstance(value, type)
            changed[option.name] = dataclasses.asdict(value) if nested else value
    return {**changed, **inner}


def _read_adapter_ranks(folder: Path) -> AdapterFacts:
    """Return the ranks of an adapter's modules, from its config."""
    from emberge.model_folder import ADAPTER_CONFIG

    path = folder / ADAPTER_CONFIG
    config = json.loads(path.read_text(encoding="utf-8"))
    return AdapterFacts(ranks=dict.fromkeys(config["target_modules"], config["r"]))


def _describe_used_rows(
    datasets: Sequence[StoredDataset], result: FitResult
) -> dict[str, UsedRows]:
    """Return the number of used rows of each dataset, and its origin."""
    return {
        info.name: UsedRows(
            task=info.task,
            rows=result.rows_by_dataset.get(info.name, 0),
            of=info.size,
            source=dataset.entry.origin,
        )
        for dataset in datasets
        for info in [dataset.info]
    }
