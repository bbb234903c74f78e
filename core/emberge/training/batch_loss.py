"""Loss of a batch: the embeddings of its texts, put into rows for the losses of each dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from emberge.contracts import (
    COSINE,
    AnyLoss,
    DatasetInfo,
    Embeddings,
    Loss,
    PerDataset,
    Similarity,
    TokenLoss,
)
from emberge.encoding import BatchEmbeddings, to_device
from emberge.errors import PluginError
from emberge.ranks import shard_rows
from emberge.training.batch_plan import PlannedPart
from emberge.training.batch_texts import DrawnBatch, DrawnPart


class Objective:
    """Losses of each dataset, and their weighted sums."""

    def __init__(
        self, losses: PerDataset[tuple[AnyLoss, ...]], infos: Sequence[DatasetInfo]
    ) -> None:
        self._losses: dict[str, tuple[Loss, ...]] = {}
        self._token_losses: dict[str, tuple[TokenLoss, ...]] = {}
        for info in infos:
            dataset_losses = losses.of(info.name, info.task) or ()
            self._losses[info.name] = tuple(x for x in dataset_losses if isinstance(x, Loss))
            self._token_losses[info.name] = tuple(
                x for x in dataset_losses if isinstance(x, TokenLoss)
            )

    def of(self, dataset: str) -> tuple[Loss, ...]:
        """Return the losses of a dataset's embeddings; none for one whose losses are over tokens."""
        return self._losses[dataset]

    def list_token_losses(self, dataset: str) -> tuple[TokenLoss, ...]:
        """Return the losses over a dataset's tokens; none for a dataset of pairs."""
        return self._token_losses[dataset]

    def list_layers(self, datasets: Sequence[str]) -> tuple[float, ...]:
        """Return the intermediate layers that these datasets' losses read, as fractions."""
        return tuple(sorted({f for d in datasets for loss in self._losses[d] for f in loss.layers}))

    def gathers(self, dataset: str) -> bool:
        """Return whether a loss of the dataset reads the rows of all ranks."""
        return any(loss.cross_rank for loss in self._losses[dataset])

    def sum_losses(
        self, dataset: str, embeddings: Embeddings, *, cross_rank: bool | None = None
    ) -> Tensor:
        """Return the weighted sum of a dataset's losses, a scalar; or of those with this `cross_rank`."""
        total = embeddings.anchor.new_zeros(())
        for loss in self._losses[dataset]:
            if cross_rank in (None, loss.cross_rank):
                value = loss(embeddings)
                name = f"the loss {type(loss).__name__} of dataset '{dataset}'"
                if not isinstance(value, Tensor) or not value.requires_grad:
                    raise PluginError(f"{name} must return a tensor with a gradient, not {value!r}")
                if value.ndim:
                    raise PluginError(
                        f"{name} has the shape {list(value.shape)}; it must be one number: take the mean "
                        "over rows"
                    )
                total = total + loss.weight * value
        return total


class _WholeGradient(torch.autograd.Function):
    """Autograd function that divides a value by the number of ranks, but not its gradient."""

    @staticmethod
    def forward(_: Any, value: Tensor, ranks: int) -> Tensor:
        return value / ranks

    @staticmethod
    def backward(_: Any, pull: Tensor) -> tuple[Tensor, None]:
        return pull, None


def compute_batch_loss(
    drawn: DrawnBatch,
    encoded: BatchEmbeddings,
    objective: Objective,
    similarity: Similarity = COSINE,
    progress: float = 1.0,
) -> Tensor:
    """Return this rank's share of a batch's loss, a scalar, from the embeddings of the rank's texts.

    The embeddings are compared by `similarity`; `progress` is the share of the training's steps that are
    done.

    Summed over ranks, the shares are the losses of the batch's parts, weighted by their rows. Every rank
    computes a loss that gathers over all rows; the rank contributes its share of the value, and the whole
    gradient of its own rows. A loss that does not gather is computed over the rank's rows and weighted by
    their number.
    """
    names = [part.planned.dataset for part in drawn.parts]
    all_encoded = encoded
    if drawn.ranks.size > 1:
        all_encoded = _gather(drawn, encoded, any(objective.gathers(name) for name in names))
    rows = sum(len(part.planned.rows) for part in drawn.parts)
    total = encoded.embeddings.new_zeros(())
    for part in drawn.parts:
        embeddings = _build_embeddings(part, all_encoded, similarity, progress)
        share = len(part.planned.rows) / rows
        total = total + _compute_part_loss(drawn, part.planned, embeddings, objective) * share
    return total


def _compute_part_loss(
    drawn: DrawnBatch, part: PlannedPart, embeddings: Embeddings, objective: Objective
) -> Tensor:
    size, (rank, ranks) = len(part.rows), (drawn.ranks.rank, drawn.ranks.size)
    if ranks == 1:
        return objective.sum_losses(part.dataset, embeddings)
    # Every rank computes the whole of these losses, and uses only the gradient of its own rows.
    whole: Tensor = objective.sum_losses(part.dataset, embeddings, cross_rank=True)
    total: Tensor = _WholeGradient.apply(whole, ranks)  # type: ignore[no-untyped-call]
    own_rows = shard_rows(size, rank, ranks)
    if own_rows.start < own_rows.stop:
        share = (own_rows.stop - own_rows.start) / size
        own_embeddings = embeddings.take(own_rows)
        total = total + share * objective.sum_losses(part.dataset, own_embeddings, cross_rank=False)
    return total


def _gather(drawn: DrawnBatch, encoded: BatchEmbeddings, needed: bool) -> BatchEmbeddings:
    """Return the embeddings of all ranks, with zeros in place of other ranks' if no loss reads these."""
    ranks, counts = drawn.ranks, drawn.counts

    def gather(values: Tensor) -> Tensor:
        if values.ndim > 2:
            missing = ranks.find_largest(values.shape[1]) - values.shape[1]
            values = pad(values, (0, 0, 0, missing))
        if needed:
            return ranks.gather(values, counts)
        before = sum(counts[: ranks.rank])
        after = sum(counts) - before - len(values)
        return pad(values, (0, 0) * (values.ndim - 1) + (before, after))

    layers = {layer: gather(values) for layer, values in encoded.layers.items()}
    return BatchEmbeddings(gather(encoded.embeddings), layers)


def _build_embeddings(
    drawn: DrawnPart, encoded: BatchEmbeddings, similarity: Similarity, progress: float
) -> Embeddings:
    """Return the embeddings, scores and labels of a part's rows."""
    table, first_negative = drawn.table, 1 + drawn.positives
    device = encoded.embeddings.device
    scores = np.where(drawn.entries >= 0, table.scores[drawn.entries], np.nan)
    labels = np.asarray(table.labels[drawn.planned.rows])

    def on_device(array: NDArray[np.generic]) -> Tensor:
        return to_device(torch.from_numpy(np.ascontiguousarray(array)), device)

    def build_scores(columns: slice) -> Tensor | None:
        values = np.ascontiguousarray(scores[:, columns], np.float32)
        return None if np.isnan(values).all() else on_device(values)

    positions = on_device(drawn.positions)
    facts: dict[str, Any] = {
        "valid": on_device(drawn.entries[:, 1:] >= 0),
        "text_id": on_device(table.text_ids[drawn.sequences]),
        "positive_score": build_scores(slice(1, first_negative)),
        "negative_score": build_scores(slice(first_negative, None)),
        "label": on_device(labels) if (labels >= 0).any() else None,
        "in_batch": drawn.planned.in_batch,
        "similarity": similarity,
        "progress": progress,
    }

    def build(rows: Tensor, **changes: Any) -> Embeddings:
        return Embeddings(
            anchor=rows[:, 0],
            positive=rows[:, 1:first_negative],
            negative=rows[:, first_negative:],
            **{**facts, **changes},
        )

    def take(values: Tensor) -> Tensor:
        rows = values[positions.flatten()].view(*positions.shape, *values.shape[1:])
        if similarity.kind == "pair_score":  # a pair's score is its text's product with one
            rows = torch.cat([torch.ones_like(rows[:, :1]), rows[:, 1:]], dim=1)
        return rows

    # A guide gives vectors, whatever the model gives.
    guide = table.guide and build(table.guide(drawn.entries), similarity=COSINE)
    layers = {layer: build(take(values)) for layer, values in encoded.layers.items()}
    return build(take(encoded.embeddings), layers=layers, guide=guide)
