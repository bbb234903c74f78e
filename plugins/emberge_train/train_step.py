"""The `train` step: fine-tune one model on datasets."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import (
    ALL_KINDS,
    Artifact,
    Backbone,
    CheckpointError,
    DataEntry,
    EmbergeError,
    Expected,
    Loss,
    Model,
    ModelRef,
    PerDataset,
    Preflight,
    Problem,
    Sampler,
    Step,
    TokenLoss,
    WholeNumber,
    Workspace,
    component,
)
from emberge.contracts import (
    describe_kinds,
    embedding_problems,
    loss_problems,
    prediction_problems,
)
from emberge.model_folder import TextLimit
from emberge.training import FitOptions, FitResult, choose_negatives

from emberge_train.evaluate_during_training import EvaluateDuringTraining

if TYPE_CHECKING:
    from pathlib import Path

    from emberge import Model, ModelRef, Preflight
    from emberge.data import CheckedData, StoredDataset
    from emberge.training import TrainingPreview


@dataclass(frozen=True, kw_only=True)
class Train(FitOptions, Step):
    """Training of one model on datasets; the sampler decides which rows are in each optimizer step.

    If transformers' TrainingArguments have an option, its name is the same here.

    Trainings with equal data, lengths, sampler, seed, number of steps and tokenizer use the same rows in the
    same order, independent of their ids, losses, models and learning rates. So the arms of an ablation differ
    only in the option that was changed.

    At each logged point `metrics.jsonl` gets `loss`, `loss/<dataset>` and `task_loss/<task>`
    as means since the previous logged point, `tokens_per_second` without padding, `padding_share` and
    `kept_share` of the tokens that the model was run on, the peak memory until then (`memory_gib`, and
    `gpu_memory_gib` for tensors on the GPU), the norm of gradients, the learning rate and the number of
    examples; `score` and `score/<task>` are logged at the steps that were scored.

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

    model: ModelRef
    """The model that training starts from."""
    data: tuple[DataEntry, ...]
    """Files, catalogues or steps that make data."""
    sampler: tuple[Sampler, ...]
    """A chain that selects examples and, last, groups them into batches."""
    loss: PerDataset[tuple[Loss | TokenLoss, ...]]
    """A weighted sum of losses for every task or dataset; losses over tokens, such as mlm, are for the task
    `text`."""
    backbone: Backbone = component("text_encoder")
    """Backbone that loads the model's folder; the folder's modules and settings are kept."""
    seed: WholeNumber | None = None
    """Seed of batches, drawn texts and dropout; by default the recipe's."""
    evaluate: EvaluateDuringTraining | None = None
    """Scores during the training, which can end it early and choose the model that is the result."""

    def adapts(self) -> ModelRef | None:
        return self.model if self.backbone.leaves_adapter else None

    def check(self, context: Preflight) -> Iterable[Problem]:
        from emberge.data import check_datasets
        from emberge.training import TrainingPreview

        context.expect(expected_of(TrainingPreview(), self.model))
        yield from self._check_model(context)
        if not self.sampler or type(self.sampler[-1]).batches is Sampler.batches:
            sampler_note = (
                f"{type(self.sampler[-1]).__name__} only selects; " if self.sampler else ""
            )
            yield context.problem(
                f"{sampler_note}end the chain with a sampler that groups, such as batch_shuffle",
                "sampler",
            )
            return
        yield from self._check_guides(context)
        if self.evaluate is not None:
            yield from self.evaluate.check(context)
        checked = check_datasets(context, self.data)
        data_problems = list(self._check_data(context, checked))
        yield from data_problems
        if not any(problem.severity == "error" for problem in data_problems):
            yield from self._look_ahead(context)

    def _check_model(self, context: Preflight) -> Iterator[Problem]:
        folder = context.whole_model(self.model)
        if self.model.adapter or context.adapter(self.model):
            yield context.problem(
                "training starts from a whole model, not an adapter; merge it first", "model"
            )
        elif folder is not None:
            facts = self.backbone.describe(folder)
            for message in facts.problems or facts.training_problems:
                yield context.problem(message, "backbone")
            for message in embedding_problems(self.loss, facts):
                yield context.problem(message, "loss")
            for message in TextLimit.read(folder).problems(*self.lengths):
                yield context.problem(message, "max_length")
            for message in facts.warnings:
                yield context.warning(message, "backbone")
            if facts.changes:
                context.note("not native", facts.changes)

    def _check_guides(self, context: Preflight) -> Iterator[Problem]:
        for loss in self._list_losses():
            if not isinstance(loss, Loss) or loss.guided_by is None:
                continue
            backbone = loss.guided_by.choose_backbone(self.backbone)
            if backbone.kind != "vector":
                yield context.problem(
                    f"loss {type(loss).__name__}: a guide gives one vector a text, and "
                    f"{type(backbone).__name__} gives {describe_kinds({backbone.kind})}; name a guide of "
                    "vectors, with its backbone: guide: {model: …, backbone: text_encoder}",
                    "loss",
                )
                continue
            folder = context.model(loss.guided_by.model)
            if folder is None:
                continue
            problems = backbone.describe(folder).problems
            for message in problems or TextLimit.read(folder).problems(loss.guided_by.max_length):
                yield context.problem(f"guide: {message}", "loss")
            if loss.compares_with_guide:
                yield from self._check_width(context, loss, folder)

    def _check_width(self, context: Preflight, loss: Loss, folder: Path) -> Iterator[Problem]:
        """Yield a problem if the guide's vectors have another size than the model's."""
        model_folder, guide = context.model(self.model), loss.guided_by
        backbone = guide.choose_backbone(self.backbone) if guide is not None else self.backbone
        if model_folder is None:
            return
        width = self.backbone.describe(model_folder).dimension
        guide_width = backbone.describe(folder).dimension
        if None not in (width, guide_width) and width != guide_width:
            fault = (
                f"loss {type(loss).__name__}: its guide has embeddings of {guide_width} numbers and "
                f"{self.model} of {width}; name a guide of the same size, or end a transformer in a linear "
                f"layer of that size: backbone: {{text_encoder: {{dense: {guide_width}}}}}"
            )
            yield context.problem(fault, "loss")

    def _check_data(self, context: Preflight, checked: CheckedData) -> Iterator[Problem]:
        if not self.data:
            yield context.problem("there is no data to train on", "data")
        yield from checked.problems
        for head in checked.heads:
            scored = head.example.positive_scores is not None
            for fault in loss_problems(self.loss, head.info, scored=scored):
                yield context.problem(fault, "loss")
        yield from self._check_sets(context, checked)
        yield from self._check_head(context, checked)
        yield from self._check_media(context, checked)
        yield from self._check_prompts(context, checked)

    def _check_sets(self, context: Preflight, checked: CheckedData) -> Iterator[Problem]:
        """Yield problems of options with the datasets, if all datasets can be read before the run."""
        is_present = all(entry.path is None or context.data(entry.path) for entry in self.data)
        infos = [head.info for head in checked.heads]
        if is_present and not checked.problems:
            for sampler in self.sampler:
                for fault in sampler.check_data(infos):
                    yield context.problem(fault, "sampler")
            names = [info.name for info in infos]
            for option, fault in PerDataset.find_all_unknown(self, names):
                yield context.problem(fault, option)

    def _check_head(self, context: Preflight, checked: CheckedData) -> Iterator[Problem]:
        folder = context.model(self.model)
        if folder is None:
            return
        infos = [head.info for head in checked.heads if head.info.task == "text"]
        losses = [loss for info in infos for loss in self.loss.of(info.name, info.task) or ()]
        for message in prediction_problems(losses, self.backbone, folder):
            yield context.problem(message, "backbone")

    def _check_media(self, context: Preflight, checked: CheckedData) -> Iterator[Problem]:
        folder = context.model(self.model)
        for head in checked.heads:
            if folder is None or head.info.media is None:
                continue
            for message in self.backbone.check_media(folder, head.info.media):
                yield context.problem(f"dataset '{head.info.name}': {message}", "data")

    def _check_prompts(self, context: Preflight, checked: CheckedData) -> Iterator[Problem]:
        folder = context.model(self.model)
        prompts = [head.decisions.prompt for head in checked.heads]
        for option in (self.query_prompt, self.document_prompt):
            prompts += [text or "" for text in option.values]
        if any(prompts) or checked.problems or folder is None:
            return
        for message in self.backbone.describe(folder).prompt_problems:
            yield context.problem(message, "backbone")

    def _look_ahead(self, context: Preflight) -> Iterator[Problem]:
        from emberge.training import preview_training

        try:
            negatives = choose_negatives(self.negatives, self.backbone.kind)
        except EmbergeError as error:
            yield context.problem(str(error), "negatives")
            return
        try:
            sampler = self._resolve_sampler(context)
            if sampler is None:
                return
            training_preview = preview_training(
                self.data,
                readers=context.readers,
                resolve=context.data,
                sampler=sampler,
                losses=self.loss,
                options=FitOptions.of(self, negatives=negatives),
                seed=self.seed or 0,
            )
        except EmbergeError as error:
            for line in str(error).splitlines():
                yield context.problem(line, "sampler")
            return
        for info in training_preview.datasets:
            for fault in loss_problems(self.loss, info, scored=info.scores is not None):
                yield context.problem(fault, "loss")
        if training_preview.lines:
            context.note("training", training_preview.lines)
        context.expect(expected_of(training_preview, self.model))

    def _list_losses(self) -> list[Loss | TokenLoss]:
        groups = [self.loss.default, *self.loss.by_task.values(), *self.loss.by_dataset.values()]
        return [loss for group in groups for loss in group or ()]

    def _resolve_sampler(self, context: Preflight) -> list[Sampler] | None:
        """Return the sampler with the files that it reads; None if a file is not there yet.

        Raises:
            EmbergeError: if a file lacks the content that the sampler's options ask for.
        """
        files = {file for sampler in self.sampler for file in sampler.files()}
        paths = {file: path for file in files if (path := context.data(file)) is not None}
        if len(paths) < len(files):
            return None
        return [sampler.resolved(paths.__getitem__) for sampler in self.sampler]

    def run(self, workspace: Workspace) -> Artifact:
        from emberge.data import load_step_datasets
        from emberge.training import FitJob, fit

        model = workspace.model(self.model)
        if model.adapter is not None:
            raise CheckpointError(
                f"{model.name}: training starts from a whole model, not an adapter; merge it first"
            )
        workspace.progress(0, 0, note="loading rows")
        datasets = load_step_datasets(workspace, self.data)
        sampler = [part.resolved(workspace.data) for part in self.sampler]
        adapts = self.backbone.leaves_adapter
        job = FitJob(
            backbone=self.backbone,
            checkpoint=model.folder,
            datasets=datasets,
            sampler=sampler,
            losses=self.loss,
            options=FitOptions.of(self),
            seed=workspace.seed,
            guides=workspace.model,
            early_stopping=(
                self.evaluate.early_stopping(workspace, model, adapts=adapts)
                if self.evaluate
                else None
            ),
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
            size=sum(result.pool.values()),
            parents=(model.name,),
            details={
                **self._describe_training(
                    model, result, _describe_used_rows(datasets, result), workspace.seed
                ),
                "learning_rate": self.learning_rate,
                "sampler": [repr(part) for part in sampler],
                **(_read_adapter_ranks(workspace.folder) if adapts else {}),
            },
        )

    def _describe_training(
        self, model: Model, result: FitResult, used: Mapping[str, Any], seed: int
    ) -> dict[str, Any]:
        return {
            **model.as_base(self.model),
            "datasets": dict(used),
            "examples": result.examples,
            "steps": result.steps,
            "seed": seed,
            "seconds": round(result.seconds, 3),
            "cpu_seconds": round(result.cpu_seconds, 3),
            "losses": dict(result.losses),
            "last_loss": _average_last_losses(result.step_losses),
            "loss_curve": [list(point) for point in result.curve],
            "scores_on_the_way": [list(scored) for scored in result.scores],
            "result_step": result.result_step,
            "checkpoints": [path.as_posix() for path in result.checkpoints],
            "backbone": _list_changed_options(self.backbone),
            **({"figures": list(result.figures)} if result.figures else {}),
        }


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


def _average_last_losses(losses: Sequence[tuple[str, float]]) -> float:
    """Return the mean loss of the last tenth of steps, at least one."""
    last_losses = losses[-max(1, len(losses) // 10) :]
    return sum(loss for _, loss in last_losses) / len(last_losses)


def _read_adapter_ranks(folder: Path) -> dict[str, Any]:
    """Return the ranks of an adapter's modules, from its config."""
    import json

    path = folder / "adapter_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    ranks = dict.fromkeys(config["target_modules"], config["r"])
    return {"adapter": {"ranks": ranks, "errors": {}, "whole": []}}


def _describe_used_rows(datasets: Sequence[StoredDataset], result: FitResult) -> dict[str, Any]:
    """Return the number of used rows of each dataset, and the stated facts of its origin."""
    return {
        info.name: {
            "task": info.task,
            "rows": result.pool.get(info.name, 0),
            "of": info.size,
            **({"source": origin} if (origin := dataset.entry.origin.plain()) else {}),
        }
        for dataset in datasets
        for info in [dataset.info]
    }


def expected_of(training_preview: TrainingPreview, model: ModelRef) -> Expected:
    """Return the artifact that a training of a model is expected to leave."""
    datasets: dict[str, dict[str, Any]] = {
        info.name: {
            "task": info.task,
            "rows": len(training_preview.rows.get(info.name, ())),
            "of": info.size,
        }
        for info in training_preview.datasets
    }
    artifact = Artifact(kind="model", parents=(model.text,), details={"datasets": datasets})
    return Expected(artifact, training_preview.kept)
