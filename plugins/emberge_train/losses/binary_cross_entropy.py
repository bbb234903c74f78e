"""Binary cross-entropy: a loss that tells texts that fit from texts that do not, each pair by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import ALL_KINDS, Embeddings, Loss, Positive

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class BinaryCrossEntropy(Loss):
    """Cross-entropy of whether each text fits its anchor (Nogueira and Cho, 2019, arXiv:1901.04085).

    The mean over anchors and their positives and negatives of -y log s - (1 - y) log(1 - s), where s is the
    sigmoid of `scale` times the similarity. y is the text's score in the data, 0 to 1; without one it is 1
    for a positive and 0 for a negative. It is the usual loss of rerankers.

    Example:
        data: ./mined.jsonl
        loss: binary_cross_entropy
        negatives: hard_only
        backbone: cross_encoder
    """

    scale: Positive = 1.0
    """Factor of the similarities; 20 suits cosines."""
    cross_rank: bool = False
    compares_rows = False
    needs = frozenset({"judgement"})
    kinds = ALL_KINDS

    def __call__(self, embeddings: Embeddings) -> Tensor:
        import torch
        from torch.nn.functional import logsigmoid

        logits, scores, valid = (
            embeddings.closeness * self.scale,
            embeddings.scores,
            embeddings.valid,
        )
        slots = embeddings.positive.shape[1]
        is_positive = (torch.arange(valid.shape[1], device=valid.device) < slots).to(logits.dtype)
        truth = torch.where(scores.isnan(), is_positive, scores)
        logits = logits.masked_fill(~valid, 0.0)
        terms = -truth * logsigmoid(logits) - (1 - truth) * logsigmoid(-logits)
        return terms.masked_fill(~valid, 0.0).sum() / valid.sum().clamp(min=1)
