"""Losses under every option that changes how they are computed, and batches with known numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from emberge import Embeddings, Loss, ModelRef, TaskKind
from emberge.ranks import shard_rows
from emberge_codiemb import PRO, MidNCE, Pearson, RankKL
from emberge_train import (
    FLOPS,
    BinaryCrossEntropy,
    CoSENT,
    EmbeddingDistillation,
    Guide,
    InfoNCE,
    KeepSpace,
    KLDistillation,
    MarginMSE,
    Matryoshka,
    SpreadOut,
)
from torch import Tensor, nn

GUIDE = Guide(model=ModelRef("some/guide"))


_info = partial(InfoNCE, temperature=0.1)
# Name, then how it is meant: (the loss, laws that it is declared to break).
LOSSES: Mapping[str, tuple[Loss, Mapping[str, bool]]] = {
    "infonce": (_info(), {}),
    "infonce, own negatives": (_info(own_negatives_only=True), {}),
    "infonce, both ways": (_info(symmetric=True), {}),
    "infonce, masks": (_info(mask_equal_text=True, mask_equal_label=True, symmetric=True), {}),
    "infonce, all texts": (_info(contrast_anchors=True, contrast_positives=True), {}),
    "cosent": (CoSENT(), {}),
    "cosent, unscored": (CoSENT(unscored=True), {}),
    "pearson": (Pearson(), {}),
    "rank_kl": (RankKL(), {}),
    "pro": (PRO(), {}),
    "mid_nce": (MidNCE(loss=(_info(),), least_score=0.7), {}),
    "mid_nce, the embedding": (MidNCE(loss=(_info(),), least_score=0.7, layer=None), {}),
    "mid_nce, without a match": (MidNCE(loss=(_info(),), least_score=1.1), {}),
    "mid_nce, sum": (
        MidNCE(
            loss=(
                InfoNCE(temperature=0.1),
                InfoNCE(temperature=0.5, symmetric=True, mask_equal_text=True, weight=0.3),
            ),
            layer=0.3,
            least_score=0.5,
        ),
        {},
    ),
    "mid_nce, guided": (MidNCE(loss=(KLDistillation(guide=GUIDE),), least_score=0.5), {}),
    "binary_cross_entropy": (BinaryCrossEntropy(scale=5), {}),
    "flops": (FLOPS(documents=0.5, queries=0.25), {}),
    "spread_out": (SpreadOut(), {}),
    "margin_mse": (MarginMSE(), {}),
    "kl_distillation": (KLDistillation(), {}),
    "kl_distillation, guided": (KLDistillation(guide=GUIDE), {}),
    "embedding_distillation": (EmbeddingDistillation(guide=GUIDE), {}),
    "embedding_distillation, l2": (
        EmbeddingDistillation(guide=GUIDE, distance="l2"),
        {"lengths": False},
    ),
    "keep_space": (KeepSpace(guide=GUIDE), {}),
    "matryoshka": (Matryoshka(loss=(_info(),), dims=(8, 3)), {}),
    "matryoshka, sum": (
        Matryoshka(
            loss=(InfoNCE(temperature=0.1), EmbeddingDistillation(guide=GUIDE, weight=0.3)),
            dims=(8, 5, 2),
            weights=(1.0, 0.5, 0.25),
        ),
        {},
    ),
    "matryoshka, spread out": (Matryoshka(loss=(_info(), SpreadOut(weight=0.5)), dims=(8, 3)), {}),
    "matryoshka, distilled": (
        Matryoshka(loss=(EmbeddingDistillation(guide=GUIDE),), dims=(8, 3)),
        {},
    ),
    "matryoshka, similarity": (Matryoshka(loss=(CoSENT(), CoSENT(scale=5)), dims=(8, 5)), {}),
}


def at(*degrees: float) -> list[list[float]]:
    """Unit vectors at some angles."""
    return [[math.cos(math.radians(d)), math.sin(math.radians(d))] for d in degrees]


def angled_groups(
    positive: Sequence[Sequence[float]],
    negative: Sequence[Sequence[float]],
    anchors: Sequence[float] = (0, 90),
    in_batch: bool = True,
) -> Embeddings:
    """Unit vectors at some angles: an anchor, its positives and its negatives a row."""
    rows, slots, hard = len(anchors), len(positive[0]), len(negative[0])

    def vectors(angles: Sequence[Sequence[float]]) -> Tensor:
        flat = at(*(angle for row in angles for angle in row))
        return torch.tensor(flat, dtype=torch.float64).view(rows, -1, 2)

    return Embeddings(
        anchor=vectors([[angle] for angle in anchors])[:, 0],
        positive=vectors(positive),
        negative=vectors(negative) if hard else torch.zeros(rows, 0, 2, dtype=torch.float64),
        valid=torch.ones(rows, slots + hard, dtype=torch.bool),
        text_id=torch.arange(rows * (1 + slots + hard)).view(rows, -1),
        in_batch=in_batch,
    )


def scored_pairs(cosines: Tensor, scores: Sequence[float] | None) -> Embeddings:
    """Pairs of unit vectors with the given cosines."""
    sines = (1 - cosines**2).clamp(min=0).sqrt()
    return Embeddings(
        anchor=torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand(len(cosines), 2),
        positive=torch.stack([cosines, sines], dim=1)[:, None],
        negative=torch.zeros(len(cosines), 0, 2, dtype=torch.float64),
        valid=torch.ones(len(cosines), 1, dtype=torch.bool),
        text_id=torch.arange(2 * len(cosines)).view(-1, 2),
        positive_score=None
        if scores is None
        else torch.tensor(scores, dtype=torch.float64)[:, None],
    )


def random_batch(
    rows: int = 12, size: int = 16, negatives: int = 2, positives: int = 1, **more: Any
) -> Embeddings:
    """A whole batch of float64 embeddings, such as the peer's losses take."""
    torch.manual_seed(rows)
    width = 1 + positives + negatives
    vectors = torch.randn(rows, width, size, dtype=torch.float64)
    scores = torch.rand(rows, positives + negatives, dtype=torch.float64)
    given: dict[str, Any] = {
        "positive_score": scores[:, :positives],
        "negative_score": scores[:, positives:],
        **more,
    }
    return Embeddings(
        anchor=vectors[:, 0],
        positive=vectors[:, 1 : 1 + positives],
        negative=vectors[:, 1 + positives :],
        valid=torch.ones(rows, positives + negatives, dtype=torch.bool),
        text_id=torch.arange(rows * width).view(rows, width),
        **given,
    )


def as_columns(batch: Embeddings) -> list[Tensor]:
    """Anchor, positives and negatives as the peer's losses take them: one tensor a column."""
    return [batch.anchor, *batch.candidates.unbind(1)]


@dataclass(frozen=True, kw_only=True)
class OnShards(Loss):
    """The mean of a loss over shards of a batch, weighted by their rows, taken by one rank."""

    loss: Loss
    ranks: int = 2

    @property
    def needs(self) -> frozenset[str]:
        return self.loss.needs

    @property
    def in_batch_tasks(self) -> frozenset[TaskKind]:
        return self.loss.in_batch_tasks

    def __call__(self, embeddings: Embeddings) -> Tensor:
        size = len(embeddings.anchor)
        total = embeddings.anchor.new_zeros(())
        for rank in range(self.ranks):
            own = shard_rows(size, rank, self.ranks)
            if own.start < own.stop:
                part = self.loss(embeddings.take(own))
                total = total + part * (own.stop - own.start) / size
        return total


def on_shards(loss: Loss, ranks: int = 2) -> OnShards:
    """The loss as so many ranks take it, each of its own rows."""
    return OnShards(loss=loss, ranks=ranks, weight=loss.weight, layers=loss.layers)


class Through(nn.Module):
    """Stands where the peer's losses have a model: its inputs are embeddings already."""

    def __init__(self, size: int = 16) -> None:
        super().__init__()
        self.size = size

    def get_embedding_dimension(self) -> int:
        return self.size

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return dict(features)
