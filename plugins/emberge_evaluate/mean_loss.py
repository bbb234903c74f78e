"""The `mean_loss` evaluator: losses on held-out data, or the loss that a training ended with."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from emberge import (
    Artifact,
    Backbone,
    CheckpointError,
    DataEntry,
    DataError,
    Dataset,
    Evaluator,
    Loss,
    Model,
    PerDataset,
    Preflight,
    Problem,
    Sampler,
    TaskInfo,
    TaskScore,
    TokenLoss,
    Units,
    WholeNumber,
    Workspace,
    component,
)
from emberge.contracts import DatasetInfo, TrainingDetails, cuts_windows, list_losses
from emberge.data import check_datasets, load_step_datasets
from emberge.model_folder import TextLimit
from emberge.results import read_artifact
from emberge.training import (
    TextOptions,
    find_embedding_problems,
    find_loss_problems,
    find_prediction_problems,
)
from emberge.wording import make_file_name

if TYPE_CHECKING:
    from emberge.training import Session

LOSS, NATS_PER_TOKEN = "loss", "nats/token"
_RECORDED_TASK = TaskInfo("training_loss", "training", LOSS, split="dev")


@dataclass(frozen=True, kw_only=True)
class MeanLoss(TextOptions, Evaluator):
    """Mean loss on held-out data, or, without `data`, over the last tenth of a training's steps.

    Each data set is a task. With the options of a training the loss is the one that early stopping by a
    development loss uses (Prechelt, 1998, in Neural Networks: Tricks of the Trade). Dropout is off, and every
    model gets the same batches, whose losses are averaged. `data` must be development data only.

    A loss over tokens, such as `mlm`, is the mean over all scored tokens of single texts, in nats per token,
    with intervals from a bootstrap over texts; its exponential is the perplexity. It measures how much a
    training forgets (BidirLM, arXiv:2604.02045). The same tokens are masked for every model, so only models
    with the same tokenizer compare.

    Without `data` nothing is computed: the loss is the one that the step `train` recorded. It compares short
    trainings with the same data, batches and losses and at most one pass over the data, such as those of a
    search for a learning rate, as in BidirLM.

    Example:
        best:
          select:
            models: [./run-1, ./run-2]
            evaluators: {mean_loss: {data: ./dev.jsonl, loss: infonce}}
            metric: loss
            top: 1
    """

    data: tuple[DataEntry, ...] = ()
    """Held-out data: files, catalogues or steps that make data."""
    loss: PerDataset[tuple[Loss | TokenLoss, ...]] = field(default_factory=PerDataset)
    """A weighted sum of losses for every task or dataset; of losses over tokens a single one."""
    sampler: tuple[Sampler, ...] = component("batch_shuffle", batch_size=32, tail="keep")
    """Sampler, or chain of samplers, that makes batches of the data."""
    backbone: Backbone = component("text_encoder")
    """Backbone that loads the checkpoint, with a head that predicts tokens where a loss needs one."""
    seed: WholeNumber = 0
    """Seed of the batches and of the choice of masked tokens."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if list_losses(self.loss) and not self.data:
            raise ValueError(
                "data: a loss is of data; name held-out data, or leave out the loss too"
            )

    def check(self, context: Preflight) -> Iterator[Problem]:
        if not self.data:
            return
        checked = check_datasets(context, self.data, show=False)
        for problem in checked.problems:
            yield dataclasses.replace(problem, where=problem.where or context.where("evaluators"))
        for first_rows in checked.first_rows:
            scored = first_rows.example.positive_scores is not None
            for text in self._find_loss_problems(first_rows.info, scored=scored):
                yield context.problem(text, "evaluators")

    def check_model(self, checkpoint: Path | None, context: Preflight) -> Iterable[str]:
        if checkpoint is None:
            return ()
        if not self.data:
            recorded = _find_training(read_artifact(checkpoint))
            return () if recorded else [_describe_unrecorded(str(checkpoint))]
        facts = self.backbone.describe(checkpoint)
        if harm := facts.problems or facts.training_problems:
            return harm
        token_losses = find_prediction_problems(list_losses(self.loss), self.backbone, checkpoint)
        too_long = TextLimit.read(checkpoint).describe_problems(*self.lengths)
        return [*find_embedding_problems(self.loss, facts), *token_losses, *too_long]

    def check_together(self, checkpoints: Sequence[Path]) -> Iterable[str]:
        if not self.data:
            found = [_find_training(read_artifact(folder)) for folder in checkpoints]
            facts = [(one.datasets, one.steps, one.seed) for one in found if one is not None]
            if any(others != facts[0] for others in facts):
                yield (
                    "trainings differ in data, steps or seed, so that their losses are over other batches "
                    "and do not compare"
                )
        elif any(isinstance(loss, TokenLoss) for loss in list_losses(self.loss)):
            yield from _compare_tokenizers(checkpoints)

    def preview(self, context: Preflight) -> Sequence[TaskInfo] | None:
        if not self.data:
            return [_RECORDED_TASK]
        checked = check_datasets(context, self.data, show=False)
        is_present = all(entry.path is None or context.data(entry.path) for entry in self.data)
        if checked.problems or not is_present:
            return None
        return [self._make_task(first_rows.info) for first_rows in checked.first_rows]

    def plan(self, workspace: Workspace) -> Sequence[TaskInfo]:
        if not self.data:
            return [_RECORDED_TASK]
        return [
            self._make_task(dataset.info, self._hash_task(dataset, workspace))
            for dataset in load_step_datasets(workspace, self.data, warn=False)
        ]

    def evaluate(
        self, model: Model, tasks: Sequence[TaskInfo], workspace: Workspace
    ) -> Iterator[TaskScore]:
        if not self.data:
            training = _find_training(model.artifact)
            if training is None:
                raise CheckpointError(_describe_unrecorded(model.name))
            yield from (TaskScore(task, training.last_loss) for task in tasks)
            return
        loaded = load_step_datasets(workspace, self.data, warn=False)
        datasets = {dataset.info.name: dataset for dataset in loaded}
        for number, task in enumerate(tasks, 1):
            with workspace.part("task", number, len(tasks), task.name):
                score = self._score_dataset(model.folder, task, datasets[task.name], workspace)
            yield score

    def _score_dataset(
        self, folder: Path, task: TaskInfo, dataset: Dataset, workspace: Workspace
    ) -> TaskScore:
        from emberge.training import FitJob, FitOptions, open_session

        if problems := list(self._find_loss_problems(dataset.info, scored=True)):
            raise DataError("\n".join(problems))
        job = FitJob(
            backbone=self.backbone,
            checkpoint=folder,
            datasets=[dataset],
            sampler=self._list_samplers(workspace),
            losses=self.loss,
            options=FitOptions.of(self, dropout=False, precision="float32"),
            seed=self.seed,
        )
        with open_session(
            job,
            work=workspace.work / f"loss-{make_file_name(task.name)}",
            store=workspace.store,
            machine=dataclasses.replace(workspace.machine, ranks=1, shard=False),
            progress=lambda *_: None,
            warn=workspace.warn,
        ) as session:
            if task.metric == NATS_PER_TOKEN:
                return self._score_tokens(session, task, dataset)
            return _score_batches(session, task)

    def _score_tokens(self, session: Session, task: TaskInfo, dataset: Dataset) -> TaskScore:
        """Return the mean loss of a dataset's scored tokens, with its sums by text."""
        import numpy as np

        (loss,) = self._choose_losses(dataset.info)
        assert isinstance(loss, TokenLoss)
        losses = session.score_texts(task.name, loss, self.seed)
        texts = session.windows[task.name].text_rows
        nats, scored = (
            np.bincount(texts, counts, len(dataset)) for counts in (losses.nats, losses.scored)
        )
        if not scored.sum():
            raise DataError(
                f"dataset '{task.name}': no token of its {len(dataset)} texts is scored; give longer texts, "
                "or a larger share of hidden tokens"
            )
        units = Units("text", "ratio", nats.tolist(), scored.tolist())
        counts = {"texts": len(dataset), "scored_tokens": int(scored.sum())}
        return TaskScore(task, float(nats.sum() / scored.sum()), units, counts)

    def _find_loss_problems(self, info: DatasetInfo, *, scored: bool) -> Iterator[str]:
        yield from find_loss_problems(self.loss, info, scored=scored)
        losses = self._choose_losses(info)
        if cuts_windows(losses, info) and len(losses) > 1:
            yield f"dataset '{info.name}' has {len(losses)} losses over tokens; give it a single one"

    def _list_samplers(self, workspace: Workspace) -> list[Sampler]:
        return [sampler.resolved(workspace.data) for sampler in self.sampler]

    def _choose_losses(self, info: DatasetInfo) -> tuple[Loss | TokenLoss, ...]:
        return self.loss.of(info.name, info.task) or ()

    def _hash_task(self, dataset: Dataset, workspace: Workspace) -> str:
        """Return a hash of everything, except the model, that decides a loss: rows and options."""
        info = dataset.info
        decisive = (
            dataset.fingerprint,
            info.negatives,
            {name: value for name, value in vars(self).items() if name != "data"},
            self._list_samplers(workspace),
            version("emberge"),
        )
        return hashlib.sha256(repr(decisive).encode()).hexdigest()

    def _make_task(self, info: DatasetInfo, fingerprint: str = "") -> TaskInfo:
        metric = NATS_PER_TOKEN if cuts_windows(self._choose_losses(info), info) else LOSS
        return TaskInfo(info.name, info.task, metric, fingerprint=fingerprint, split="dev")


def _score_batches(session: Session, task: TaskInfo) -> TaskScore:
    """Return the mean of the losses of a session's batches."""
    # A model without trainable weights gets no gradients, so that a pass is only a forward pass.
    session.encoder.module.requires_grad_(False)
    steps = range(session.plan.steps)
    losses = [float(session.backward(session.plan[step]).loss) for step in steps]
    units = Units("batch", "mean", losses)
    return TaskScore(task, sum(losses) / len(losses), units, {"batches": len(losses)})


def _compare_tokenizers(checkpoints: Sequence[Path]) -> Iterator[str]:
    from emberge.merging import Tokenizer
    from emberge.model_folder import Checkpoint

    tokenizers = [Tokenizer.read(Checkpoint(folder)) for folder in checkpoints]
    known = [(one.algorithm, one.tokens) for one in tokenizers if one is not None]
    if any(tokenizer != known[0] for tokenizer in known[1:]):
        yield (
            "models have other tokenizers, so that their losses are over other tokens and do not compare; "
            "evaluate those of one tokenizer together"
        )


def _find_training(artifact: Artifact | None) -> TrainingDetails | None:
    details = artifact.details if artifact is not None else None
    return details if isinstance(details, TrainingDetails) else None


def _describe_unrecorded(model: str) -> str:
    return f"{model}: it has no record of its training losses; name the result of a step train, or give data"
