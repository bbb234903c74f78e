"""The `train` step: fine-tune one model on datasets."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge import (
    Artifact,
    Backbone,
    CheckpointError,
    DataEntry,
    EmbergeError,
    FitOptions,
    FitResult,
    Loss,
    Model,
    ModelRef,
    PerDataset,
    Preflight,
    Problem,
    Sampler,
    Step,
    Workspace,
    component,
    loss_faults,
    write_bags,
)

from emberge_standard.reporters.trackers import tracker_faults, tracking
from emberge_standard.steps.doubtful_training import (
    loss_warnings,
    negative_warnings,
    option_warnings,
)
from emberge_standard.steps.on_the_way import EvaluateOnTheWay
from emberge_standard.steps.training_cost import expected_of

__all__ = ["Train"]


@dataclass(frozen=True, kw_only=True)
class Train(FitOptions, Step):
    """Fine-tune a model on datasets, one dataset an optimizer step as the sampler groups them.

    `model` is where it starts; `backbone` loads it and keeps everything its folder had. `data` are files,
    catalogues or steps that make data; `sampler` is a chain that selects examples and, last, groups them;
    `loss` gives every task a weighted sum of losses. `seed` defaults to the recipe's. Training lasts `epochs`
    (1; a fraction is its first batches) or `max_steps`. Options have the names of transformers'
    TrainingArguments where one exists.

    The `learning_rate` rises over `warmup_ratio` of the steps and then follows `schedule`, with `restart`
    anew in each stretch of a sampler that puts stages, tasks or datasets one after another. AdamW has
    `adam_beta1`, `adam_beta2` and `adam_epsilon`; `weight_decay` spares biases and norms; gradients longer
    than `max_grad_norm` are cut. `precision` auto is bfloat16 where a GPU has it; weights and optimizer stay
    float32. Without `dropout` equal texts of a batch are encoded once.

    Texts are cut to `max_length` tokens, or to `query_length` and `document_length`, by default to the
    model's own. A row gives `positives` positives and up to `hard_negatives` negatives, drawn anew in each
    epoch; rows with fewer repeat theirs (`fill: repeat`) or leave places out (`mask`). `negatives` says by
    task or dataset whether other rows' texts are negatives too (`in_batch`, `hard_only`); auto is yes for
    retrieval and reranking.

    A state to resume from is saved every `save_steps` steps, or about every half minute; `keep_last` of the
    models at those steps (or at the ends of epochs) are kept for merging: `models: $id.checkpoints` of a
    `merge` takes them all, oldest first. `evaluate` scores the model on the way, can end the training early
    and makes the best model the result.

    Every `logging_steps` steps, by default at about 500 points, `metrics.jsonl` and `trackers`
    (`tensorboard`, `wandb` and others of accelerate; their files go to `trackers` in the result) are told
    `loss`, `loss/<dataset>` and `task_loss/<task>` as means since the point before, `tokens_per_second`
    without padding, `padding_share` and `kept_share` of what the model was run on, the most memory until
    then (`memory_gib`, and `gpu_memory_gib` that tensors took), `grad_norm`, `learning_rate` and `examples`;
    `score` and `score/<task>` stand at the steps that were scored. `token_budget` is
    the padded size of a chunk in tokens, `kept_tokens` how many tokens' activations are kept for the backward
    pass instead of being computed again; by default both follow the machine.

    It leaves a SentenceTransformers folder, `checkpoints/step-N`, and the row numbers of every dataset that
    the sampler took only a part of, as `bags/<dataset>.npy`. A backbone that trains an adapter leaves that,
    and `$id` means the model with it on.
    """

    produces = "model"
    every_rank = True

    model: ModelRef
    data: tuple[DataEntry, ...]
    sampler: tuple[Sampler, ...]
    loss: PerDataset[tuple[Loss, ...]]
    backbone: Backbone = component("text_encoder")
    seed: int | None = None
    evaluate: EvaluateOnTheWay | None = None
    trackers: tuple[str, ...] = ()
    """Who else is told what is logged: `tensorboard`, `wandb` or another of accelerate, if installed."""

    def _options(self) -> FitOptions:
        return FitOptions(**{f.name: getattr(self, f.name) for f in dataclasses.fields(FitOptions)})

    def adapts(self) -> ModelRef | None:
        return self.model if self.backbone.leaves_adapter else None

    def check(self, context: Preflight) -> Iterable[Problem]:
        yield from self._check_model(context)
        if not self.sampler or type(self.sampler[-1]).batches is Sampler.batches:
            last = f"{type(self.sampler[-1]).__name__} only selects; " if self.sampler else ""
            yield context.problem(
                f"{last}end the chain with a sampler that groups, such as batch_shuffle", "sampler"
            )
            return
        yield from self._check_guides(context)
        for option, warning in option_warnings(self._options()):
            yield context.warning(warning, option)
        for warning in loss_warnings(self.loss):
            yield context.warning(warning, "loss")
        for sampler in self.sampler:
            yield from sampler.check(context)
        for fault in tracker_faults(self.trackers):
            yield context.problem(fault, "trackers")
        if self.evaluate is not None:
            yield from self.evaluate.check(context)
        found = list(self._check_data(context))
        yield from found
        if not any(problem.severity == "error" for problem in found):
            yield from self._look_ahead(context)

    def _check_model(self, context: Preflight) -> Iterator[Problem]:
        folder = context.model(self.model)
        if self.model.adapter is not None:
            yield context.problem("training starts from a whole model, not an adapter", "model")
        elif folder is not None:
            for message in self.backbone.check(folder):
                yield context.problem(message, "backbone")

    def _check_guides(self, context: Preflight) -> Iterator[Problem]:
        losses = [self.loss.default, *self.loss.by_task.values(), *self.loss.by_dataset.values()]
        for loss in (one for several in losses for one in several or ()):
            guide = loss.guided_by
            folder = context.model(guide.model) if guide is not None else None
            if guide is not None and folder is not None:
                for message in guide.backbone.check(folder):
                    yield context.problem(f"guide: {message}", "loss")

    def _check_data(self, context: Preflight) -> Iterator[Problem]:
        from emberge import check_entries

        if not self.data:
            yield context.problem("there is no data to train on", "data")
        checked = check_entries(
            self.data, readers=context.readers, resolve=context.data, network=context.deep
        )
        for problem in checked.problems:
            place = problem.where or context.where("data")
            yield dataclasses.replace(problem, where=place)
        for head in checked.heads:
            context.note(head.title, head.lines)
            scored = head.example.positive_scores is not None
            for fault in loss_faults(self.loss, head.info, scored=scored):
                yield context.problem(fault, "loss")
        for warning in negative_warnings(self._options(), checked):
            yield context.warning(warning, "hard_negatives")

    def _look_ahead(self, context: Preflight) -> Iterator[Problem]:
        from emberge import outlook

        sampler = self._sampler_now(context)
        if sampler is None:
            return
        try:
            ahead = outlook(
                self.data,
                readers=context.readers,
                resolve=context.data,
                sampler=sampler,
                options=self._options(),
                seed=self.seed or 0,
            )
        except EmbergeError as error:
            for line in str(error).splitlines():
                yield context.problem(line, "sampler")
            return
        if ahead.lines:
            context.note("training", ahead.lines)
        context.expect(expected_of(ahead))

    def _sampler_now(self, context: Preflight) -> list[Sampler] | None:
        """The sampler with what it reads; None while that is not there, or not what it needs."""
        places = {
            file: context.made(file) if file.step is not None else context.data(file)
            for sampler in self.sampler
            for file in sampler.files()
        }
        known = {file: place for file, place in places.items() if place is not None}
        try:
            return [sampler.resolved(known.__getitem__) for sampler in self.sampler]
        except (EmbergeError, KeyError):
            return None  # the sampler's own check has said what there is to say

    def run(self, workspace: Workspace) -> Artifact:
        from emberge import fit, load_datasets

        model = workspace.model(self.model)
        if model.adapter is not None:
            raise CheckpointError(
                f"{model.name}: training starts from a whole model, not an adapter"
            )
        rehearsal = workspace.rehearsal
        datasets = load_datasets(
            self.data,
            readers=workspace.readers,
            resolve=workspace.data,
            limit=rehearsal.rows if rehearsal else None,
            store=workspace.store,
            warn=workspace.warn,
        )
        seed = workspace.seed if self.seed is None else self.seed
        sampler = [one.resolved(workspace.data) for one in self.sampler]
        adapts = self.backbone.leaves_adapter
        evaluate = self.evaluate
        with tracking(
            () if rehearsal else self.trackers,
            run=workspace.id,
            folder=workspace.folder / "trackers",
            metric=workspace.metric,
        ) as metric:
            result = fit(
                backbone=self.backbone,
                checkpoint=model.folder,
                datasets=datasets,
                sampler=sampler,
                losses=self.loss,
                options=self._options(),
                folder=workspace.folder,
                work=workspace.work,
                seed=seed,
                device=workspace.machine.devices[0],
                store=workspace.store,
                progress=workspace.progress,
                metric=metric,
                rehearsal=rehearsal,
                warn=workspace.warn,
                ranks=workspace.machine.ranks,
                shard=workspace.machine.shard,
                guides=lambda reference: _guide_folder(workspace, reference),
                watch=evaluate.watch(workspace, model, metric, adapts=adapts) if evaluate else None,
            )
        bags = {} if rehearsal else write_bags(workspace.folder, result.bags)
        tasks = {d.info.name: (d.info.task, d.info.size) for d in datasets}
        return Artifact(
            kind="model",
            size=sum(result.pool.values()),
            parents=(model.name,),
            details={
                **self._details(model, result, _used(tasks, result, bags), seed),
                "sampler": [repr(one) for one in sampler],
                **(_adapter(workspace.folder) if adapts else {}),
            },
        )

    def _details(
        self, model: Model, result: FitResult, used: Mapping[str, Any], seed: int
    ) -> dict[str, Any]:
        return {
            "base": model.name,
            "base_reference": self.model.text,
            "base_fingerprint": model.fingerprint,
            "datasets": dict(used),
            "examples": result.examples,
            "steps": result.steps,
            "seed": seed,
            "seconds": round(result.seconds, 3),
            "cpu_seconds": round(result.cpu_seconds, 3),
            "losses": dict(result.losses),
            "loss_curve": [list(point) for point in result.curve],
            "scores_on_the_way": [list(scored) for scored in result.scores],
            "result_step": result.result_step,
            "checkpoints": [path.as_posix() for path in result.checkpoints],
            "backbone": dict(self.backbone.options()),
            "learning_rate": self.learning_rate,
        }


def _guide_folder(workspace: Workspace, reference: ModelRef) -> Path:
    guide = workspace.model(reference)
    if guide.adapter is not None:
        raise CheckpointError(
            f"{guide.name}: a guide is a whole model, not an adapter; merge it first"
        )
    return guide.folder


def _adapter(folder: Path) -> dict[str, Any]:
    """What an adapter holds, as its config says it."""
    import json

    path = folder / "adapter_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    ranks = dict.fromkeys(config["target_modules"], config["r"])
    return {"adapter": {"ranks": ranks, "errors": {}, "whole": []}}


def _used(
    tasks: Mapping[str, tuple[str, int]], result: FitResult, bags: Mapping[str, str]
) -> dict[str, Any]:
    """What was used of each dataset, and where the numbers of its rows stand if they are not all."""
    return {
        name: {
            "task": task,
            "rows": result.pool.get(name, 0),
            "of": size,
            **({"bag": bags[name]} if name in bags else {}),
        }
        for name, (task, size) in tasks.items()
    }
