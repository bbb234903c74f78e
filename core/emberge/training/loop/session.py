"""Session: model, batches and losses of a training or a measurement, prepared once."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from emberge.contracts import (
    Dataset,
    Encoder,
    Rows,
    TokenisedText,
    TokenLoss,
    TokenPredictor,
    take_rows,
)
from emberge.encoding import (
    EncodePlan,
    PassResult,
    TokenScores,
    corrupt_text,
    encode_and_backward,
    predict_and_backward,
    score_texts,
)
from emberge.hashes import hash_sha256
from emberge.ranks import RankGroup, gather_weights, shard_rows
from emberge.seeds import make_seed
from emberge.training.batch_loss import Objective, compute_batch_loss
from emberge.training.batch_plan import BatchPlan, PlannedBatch, PlannedPart
from emberge.training.batch_texts import DrawnBatch, TextSampling, draw_batch
from emberge.training.example_table import ExampleTable
from emberge.training.fit_options import FitJob, FitOptions, Progress
from emberge.training.loop.checkpoints import SaveClock, list_steps_to_keep
from emberge.training.text_windows import WindowTable
from emberge.training.trainee import Trainee


@dataclass(eq=False)
class Session(Trainee):
    """Model, batches and losses of a job, ready for passes over its batches.

    `open_session` builds it, after it has tokenised all texts. `plan` has the batches. `datasets` are the
    datasets of its rows, `tables` have these rows as token ids, and `windows` have the rows of single texts.
    `encode_plan` decides how a batch is run in chunks, and `sampling` which texts of a row are drawn.
    `progress(done, total, unit, note)` and `warn(text)` tell the user, and `clock` decides when states are
    saved.
    """

    job: FitJob
    ranks: RankGroup
    plan: BatchPlan
    datasets: Sequence[Dataset]
    objective: Objective
    encoder: Encoder
    tables: Mapping[str, ExampleTable]
    windows: Mapping[str, WindowTable]
    encode_plan: EncodePlan
    sampling: TextSampling
    progress: Progress
    clock: SaveClock
    warn: Callable[[str], None]

    # Threads are chosen once and kept with the states.
    fixes_threads = True

    @functools.cached_property
    def parameters(self) -> Mapping[str, Tensor]:
        parameters = self.encoder.module.named_parameters()
        return {name: parameter for name, parameter in parameters if parameter.requires_grad}

    @property
    def splits_weights(self) -> bool:
        return self.encode_plan.splits_weights

    @property
    def steps(self) -> int:
        return self.plan.steps

    def plan_batch(self, step: int) -> PlannedBatch:
        return self.plan[step]

    @property
    def tasks(self) -> Mapping[str, str]:
        return {info.name: info.task for info in self.plan.pool}

    def describe_identity(self) -> Mapping[str, Any]:
        return _describe_job(self.job, self.datasets, self.plan.fingerprint)

    def list_steps_to_keep(self, options: FitOptions) -> tuple[int, ...]:
        return list_steps_to_keep(self.plan.starts, options)

    def gather_weights(self) -> contextlib.AbstractContextManager[None]:
        return gather_weights(self.encoder.module)

    def save(self, folder: Path) -> None:
        self.encoder.save(folder)

    def draw_texts(self, batch: PlannedBatch) -> tuple[TokenisedText, ...]:
        """Return the texts of one batch of pairs on this rank."""
        return self._draw_batch(batch, skips_anchors=False).texts

    def backward(self, batch: PlannedBatch) -> PassResult:
        """Run the passes over a batch, of pairs and of tokens; add this rank's share of the gradients.

        The result has the loss of the whole batch, and this rank's counts of tokens.
        """
        seed = make_seed(self.plan.seed, "dropout", batch.step, self.ranks.rank)
        results = [
            self._run_token_passes(batch, number, seed)
            for number, part in enumerate(batch.parts)
            if part.dataset in self.windows
        ]
        pair_parts = tuple(part for part in batch.parts if part.dataset not in self.windows)
        pairs = replace(batch, parts=pair_parts)
        if pairs.parts:
            results.append(self._run_pair_passes(pairs, pairs.size / batch.size, seed))
        total = functools.reduce(operator.add, results)
        return replace(total, loss=self.ranks.sum_over_ranks(total.loss))

    def _run_pair_passes(self, batch: PlannedBatch, share: float, seed: int) -> PassResult:
        """Run both passes over the pairs of a batch, whose loss is weighted by their share of its rows."""
        encoder = self.encoder
        # The texts of an encoder of pairs contain the anchor.
        drawn = self._draw_batch(batch, skips_anchors=encoder.similarity.kind == "pair_score")
        return encode_and_backward(
            encoder,
            drawn.texts,
            functools.partial(
                compute_batch_loss,
                drawn,
                objective=self.objective,
                similarity=encoder.similarity,
                progress=batch.step / self.plan.steps,
            ),
            self.encode_plan,
            seed=seed,
            layers=self.objective.list_layers([part.dataset for part in batch.parts]),
            weight=share,
        )

    def _run_token_passes(self, batch: PlannedBatch, part_number: int, seed: int) -> PassResult:
        """Run the passes of losses over the tokens of one part of a batch, weighted by `_compute_share`.

        A corruption depends only on seed, step, dataset and window, not on ranks or chunks. The model's own
        loss term is the mean over the losses' passes, whatever the losses' weights are.
        """
        encoder, part = self.encoder, batch.parts[part_number]
        assert isinstance(encoder, TokenPredictor)
        sequences = self.windows[part.dataset].sequences
        own_rows = part.rows[shard_rows(len(part.rows), self.ranks.rank, self.ranks.size)]
        share = self._compute_share(batch, part_number)
        results = []
        losses = self.objective.list_token_losses(part.dataset)
        for number, loss in enumerate(losses):
            key = (self.plan.seed, "corruption", batch.step, part.dataset, number)
            texts = [
                corrupt_text(encoder, sequences[int(row)], loss, make_seed(*key, int(row)))
                for row in own_rows
            ]
            results.append(
                predict_and_backward(
                    encoder,
                    texts,
                    loss,
                    self.encode_plan,
                    seed=make_seed(seed, part_number, number),
                    weight=loss.weight * share,
                    auxiliary_weight=share / len(losses),
                )
            )
        return functools.reduce(operator.add, results)

    def _compute_share(self, batch: PlannedBatch, number: int) -> float:
        """Return a part's share of its batch: of tokens if all parts are single texts, else of rows."""
        parts = batch.parts
        if any(part.dataset not in self.windows for part in parts):
            return len(parts[number].rows) / batch.size
        tokens = [self._count_tokens(part) for part in parts]
        return tokens[number] / sum(tokens)

    def _count_tokens(self, part: PlannedPart) -> int:
        token_counts = self.windows[part.dataset].info.tokens
        assert token_counts is not None
        return int(token_counts[part.rows].sum())

    def score_texts(self, dataset: str, loss: TokenLoss, seed: int) -> TokenScores:
        """Return a loss over a dataset's windows of single texts, each computed alone, without gradients.

        A window's corruption depends only on seed, dataset and the window's position.
        """
        assert isinstance(self.encoder, TokenPredictor)
        return score_texts(
            self.encoder,
            self.windows[dataset].sequences,
            loss,
            seed_of=lambda window: make_seed(seed, "scored texts", dataset, window),
            token_budget=self.encode_plan.token_budget,
        )

    def _draw_batch(self, batch: PlannedBatch, *, skips_anchors: bool) -> DrawnBatch:
        return draw_batch(
            batch,
            self.tables,
            self.sampling,
            # Equal texts get different dropout, so each is encoded.
            unique=not self.encode_plan.draws_random,
            skips_anchors=skips_anchors,
            ranks=self.ranks,
        )

    def find_data_rows(self, dataset: str, rows: Rows) -> Rows:
        """Return the dataset's row numbers for rows of the plan; for windows, those of their texts."""
        window_table = self.windows.get(dataset)
        if window_table is None:
            return rows
        return np.unique(window_table.text_rows[take_rows(rows)])


def _describe_job(job: FitJob, datasets: Sequence[Dataset], plan: str) -> dict[str, Any]:
    """Return the facts that must be equal to continue a saved state, by name, as JSON values.

    `datasets` are the datasets whose rows are used, and `plan` is the fingerprint of their batches.
    """
    weights = hashlib.sha256()
    folder = job.checkpoint
    for path in sorted([*folder.glob("*.safetensors"), *folder.glob("*/*.safetensors")]):
        weights.update(bytes.fromhex(hash_sha256(path)))
    # Options that only change speed, or the files kept in addition to the model, are left out.
    free_options = {"save_steps", "keep_last", "logging_steps", "token_budget", "kept_tokens"}
    options = {k: v for k, v in asdict(job.options).items() if k not in free_options}
    infos = [dataset.info for dataset in datasets]
    component_by_name = {
        "backbone": job.backbone,
        **{f"loss of {info.name}": job.losses.of(info.name, info.task) for info in infos},
    }
    return {
        "plan": plan,
        "data": {dataset.info.name: dataset.fingerprint for dataset in datasets},
        "checkpoint": weights.hexdigest(),
        "options": json.loads(json.dumps(options, default=str)),
        "code": {name: repr(value) for name, value in component_by_name.items()},
    }
