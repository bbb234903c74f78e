"""MidNCE: a contrastive loss of true matches, on the embeddings of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from emberge import Embeddings, Loss, Share, component
from emberge_train import OuterLoss

if TYPE_CHECKING:
    from torch import Tensor

# Scores are kept in single precision, where 0.7 may be a little less.
ROUNDING = 1e-6


@dataclass(frozen=True, kw_only=True)
class MidNCE(OuterLoss):
    """Contrastive loss of the true matches among scored pairs, at a middle layer (CoDiEmb, arXiv:2508.11442).

    The inner `loss` (one, or a weighted sum of several) gets the embeddings of `layer`, a fraction of the
    model's depth, pooled as the model pools. The positives of an anchor are those of its texts that have a
    score of at least `least_score`; its other texts and the texts of other rows are its negatives. So a row
    without a match has no anchor, but its texts are still negatives of other rows. Scores are from 0 to 1:
    the 5 of STS-B is 1.

    A batch without a match gives 0. The option `cross_rank` of `mid_nce`, not that of the inner loss, decides
    whether texts of all ranks are gathered; by default they are not.

    `layer: null` takes the final embedding, so `mid_nce: {layer: null}` alone is the paper's InfoNCE baseline
    for similarity data. The example has the paper's whole loss for similarity, with the weights of its code.

    Example:
        trained:
          train:
            model: ./base
            data: ./datasets.yaml
            loss:
              by_task:
                retrieval: infonce
                sts:
                  - pearson: {weight: 2}
                  - rank_kl: {weight: 5}
                  - pro: {weight: 0.5}
                  - mid_nce: {weight: 1}
            sampler: batch_shuffle
    """

    layer: Share | None = 0.5
    """Fraction of the depth: 0 is before the first layer, 1 after the last; null is the final embedding."""
    least_score: Share = 1.0
    """Smallest score, 0 to 1, of a match."""
    loss: tuple[Loss, ...] = component("infonce")
    cross_rank: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layer is not None:
            object.__setattr__(self, "layers", tuple(sorted({self.layer, *self.layers})))

    @property
    def needs(self) -> frozenset[str]:
        # Other rows' texts are always negatives here.
        return super().needs - {"contrast"} | {"positive_score"}

    def check(self, dimension: int) -> Sequence[str]:
        # A layer's states may be of another size than the final embedding.
        return super().check(dimension) if self.layer is None else ()

    def __call__(self, embeddings: Embeddings) -> Tensor:
        import torch

        e = embeddings
        if e.positive_score is None and e.negative_score is None:
            raise ValueError("mid_nce needs scores")
        matches = e.valid & (e.scores >= self.least_score - ROUNDING)
        inner_layers = {layer: e.layers[layer] for loss in self.loss for layer in loss.layers}
        seen = e if self.layer is None else e.layers[self.layer]
        value = self.sum_inner(
            _repeat_by_match(replace(seen, layers=inner_layers, guide=e.guide), matches)
        )
        return torch.where(matches.any(), value, 0 * value)


def _repeat_by_match(e: Embeddings, matches: Tensor) -> Embeddings:
    """Return the batch with each row's texts twice: as positives where they match, else as negatives."""
    import torch

    texts, scores = e.candidates, e.scores
    return replace(
        e,
        positive=texts,
        negative=texts,
        valid=torch.cat([matches, e.valid & ~matches], dim=1),
        text_id=torch.cat([e.text_id, e.text_id[:, 1:]], dim=1),
        positive_score=scores,
        negative_score=scores,
        in_batch=True,
        layers={layer: _repeat_by_match(inner, matches) for layer, inner in e.layers.items()},
        guide=None if e.guide is None else _repeat_by_match(e.guide, matches),
    )
