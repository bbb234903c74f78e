"""The `token_loss` evaluator: the loss of a model's token predictions on held-out texts, by domain."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from emberge import (
    Backbone,
    Batch,
    Count,
    DataEntry,
    DataError,
    Dataset,
    Evaluator,
    Model,
    PerDataset,
    Pool,
    Preflight,
    Problem,
    Sampler,
    TaskInfo,
    TaskScore,
    TextLength,
    TokenLoss,
    Units,
    WholeNumber,
    Workspace,
    component,
)
from emberge.contracts import BatchPart, prediction_problems

if TYPE_CHECKING:
    import numpy as np
    from emberge.data import CheckedData
    from emberge.training import FitJob, Session

    Array = np.ndarray[Any, np.dtype[np.float64]]


NATS_PER_TOKEN, BITS_PER_BYTE = "nats/token", "bits/byte"


@dataclass(frozen=True, kw_only=True)
class TokenLossOnTexts(Evaluator):
    """Mean loss of predicted tokens on held-out texts: each data set, such as one of a domain, is a task.

    It measures how much a training forgets: the model before and the model after the training are scored on
    texts that neither was trained on (BidirLM, arXiv:2604.02045). The same tokens are masked for every model,
    and intervals are from a bootstrap over texts. `loss` is in nats per token and compares only models with
    the same tokenizer; its exponential is the perplexity. `bits_per_byte` (Gao et al., 2020,
    arXiv:2101.00027) is the loss per token times the number of tokens, divided by the number of bytes. It
    compares models with any tokenizer that predict in the same way.

    Example:
        forgotten:
          evaluate:
            models: [./base, ./adapted]
            evaluators: {token_loss: {data: ./held-out.yaml, loss: {mlm: {share: 0.3}}}}
    """

    data: tuple[DataEntry, ...]
    """Files, catalogues or steps that make data: sets of single texts."""
    loss: TokenLoss
    """Loss over tokens, such as `mlm`, `mntp`, or `causal_lm` for models whose attention is still causal."""
    metric: Literal["loss", "bits_per_byte"] = "loss"
    """Unit of a data set's score."""
    backbone: Backbone = component("text_encoder")
    """Backbone that loads the checkpoint with a head that predicts tokens."""
    max_length: TextLength | None = None
    """Number of tokens of the windows into which texts are cut; by default the model's own limit.

    Set this option to compare models with different limits.
    """
    token_budget: Count | None = None
    """Padded size of a chunk in tokens; by default it follows the device and its free memory."""
    seed: WholeNumber = 0
    """Seed of the choice of masked tokens."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        checked = self._check_texts(context)
        for problem in checked.problems:
            yield dataclasses.replace(problem, where=problem.where or context.where("evaluators"))
        for head in checked.heads:
            if head.info.task != "text":
                yield context.problem(
                    _find_pairs_problem(head.info.name, head.info.task), "evaluators"
                )

    def check_model(self, checkpoint: Path, context: Preflight) -> Iterable[str]:
        problems = self.backbone.describe(checkpoint).problems
        return problems or prediction_problems([self.loss], self.backbone, checkpoint)

    def check_together(self, checkpoints: Sequence[Path]) -> Iterable[str]:
        if self.metric != "loss":
            return
        from emberge.merging import Tokenizer
        from emberge.model_folder import Checkpoint

        tokenizers = [Tokenizer.read(Checkpoint(folder)) for folder in checkpoints]
        vocabularies = [
            (tokenizer.algorithm, tokenizer.tokens)
            for tokenizer in tokenizers
            if tokenizer is not None
        ]
        if any(tokenizer != vocabularies[0] for tokenizer in vocabularies[1:]):
            yield (
                "models have other tokenizers, so that their losses are over other tokens and cannot be "
                "compared; take metric: bits_per_byte"
            )

    def preview(self, context: Preflight) -> Sequence[TaskInfo] | None:
        checked = self._check_texts(context)
        is_present = all(entry.path is None or context.data(entry.path) for entry in self.data)
        if checked.problems or not is_present:
            return None
        return [self._make_task(head.info.name) for head in checked.heads]

    def _check_texts(self, context: Preflight) -> CheckedData:
        from emberge.data import check_datasets

        return check_datasets(context, self.data, show=False)

    def plan(self, workspace: Workspace) -> Sequence[TaskInfo]:
        return [
            self._make_task(dataset.info.name, self._hash_task(dataset, workspace))
            for dataset in self._load(workspace)
        ]

    def evaluate(
        self, model: Model, tasks: Sequence[TaskInfo], workspace: Workspace
    ) -> Iterator[TaskScore]:
        from emberge.training import open_session

        datasets = {dataset.info.name: dataset for dataset in self._load(workspace)}
        with open_session(
            self._make_job(model.folder, [datasets[task.name] for task in tasks], workspace),
            work=workspace.work / f"token-loss-{model.fingerprint[:16]}",
            store=workspace.store,
            machine=dataclasses.replace(workspace.machine, ranks=1, shard=False),
            progress=lambda *_: None,
            warn=workspace.warn,
        ) as session:
            for number, task in enumerate(tasks, 1):
                with workspace.part("task", number, len(tasks), task.name):
                    score = self._score_dataset(task, datasets[task.name], session)
                yield score

    def _score_dataset(self, task: TaskInfo, dataset: Dataset, session: Session) -> TaskScore:
        import numpy as np

        losses = session.score_texts(task.name, self.loss, self.seed)
        texts = session.windows[task.name].texts

        def by_text(counts: np.ndarray[Any, Any]) -> Array:
            return np.bincount(texts, counts, len(dataset)).astype(np.float64)

        nats, scored = by_text(losses.nats), by_text(losses.scored)
        if not scored.sum():
            raise DataError(
                f"dataset '{task.name}': no token of its {len(dataset)} texts is scored; give longer texts, "
                "or a larger share of hidden tokens"
            )
        loss, tokens = float(nats.sum() / scored.sum()), int(losses.tokens.sum())
        sizes = [len(dataset[row].anchor.encode()) for row in range(len(dataset))]
        bits = loss * tokens / math.log(2) / sum(sizes)
        result = {
            "loss": loss,
            "perplexity": math.exp(loss) if loss < 700 else math.inf,
            "bits_per_byte": bits,
            "texts": len(dataset),
            "tokens": tokens,
            "scored_tokens": int(scored.sum()),
            "bytes": sum(sizes),
        }
        if self.metric == "loss":
            units = Units("text", "ratio", nats.tolist(), scored.tolist())
            return TaskScore(task, loss, units, result)
        # The unscored tokens of a text are assumed to have the same mean loss as the scored ones.
        total_bits = nats * (tokens / scored.sum() / math.log(2))
        return TaskScore(task, bits, Units("text", "ratio", total_bits.tolist(), sizes), result)

    def _make_job(self, folder: Path, datasets: Sequence[Dataset], workspace: Workspace) -> FitJob:
        from emberge.training import FitJob, FitOptions

        for dataset in datasets:
            if dataset.info.task != "text":
                raise DataError(_find_pairs_problem(dataset.info.name, dataset.info.task))
        options = FitOptions(
            max_length=PerDataset(default=self.max_length),
            token_budget=self.token_budget,
            dropout=False,
            precision="float32",
        )
        return FitJob(
            backbone=self.backbone,
            checkpoint=folder,
            datasets=datasets,
            sampler=(_FirstRows(),),
            losses=PerDataset(default=(self.loss,)),
            options=options,
            seed=self.seed,
        )

    def _load(self, workspace: Workspace) -> Sequence[Dataset]:
        from emberge.data import step_datasets

        return step_datasets(workspace, self.data, warn=False)

    def _hash_task(self, dataset: Dataset, workspace: Workspace) -> str:
        """Return a hash of all that decides a score, except the model: texts, loss, windows, masks."""
        options = dataclasses.replace(self, data=(), token_budget=None)
        decisive = (dataset.fingerprint, options, version("emberge"))
        return hashlib.sha256(repr(decisive).encode()).hexdigest()

    def _make_task(self, name: str, fingerprint: str = "") -> TaskInfo:
        metric = NATS_PER_TOKEN if self.metric == "loss" else BITS_PER_BYTE
        return TaskInfo(name, "text", metric, fingerprint=fingerprint, split="dev")


class _FirstRows(Sampler):
    """Sampler for scoring without training: one batch of every data set's first rows."""

    def batches(self, pool: Pool, seed: int) -> list[Batch]:
        return [Batch((BatchPart(info.name, rows[:1]),)) for info, rows in pool.items()]


def _find_pairs_problem(name: str, task: str) -> str:
    return (
        f"dataset '{name}' is of the task {task}, and token_loss reads single texts; leave it out, or read "
        "the file as texts with task: text"
    )
