"""Masked language modelling: masked tokens are predicted from the other tokens of the text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge_train.losses.token_prediction import HiddenTokens, mean_of_scored

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class MLM(HiddenTokens):
    """Prediction of hidden tokens at their places (Devlin et al., 2019, arXiv:1810.04805).

    Each token that is neither special nor part of a prompt is chosen with the probability `share`. Of the
    chosen tokens, the share `masked` is replaced by the mask token, the share `random` by a random token, and
    the rest is unchanged. The loss is the mean cross-entropy of all chosen tokens. By default all chosen
    tokens are masked (BidirLM, arXiv:2604.02045); BERT uses `masked: 0.8, random: 0.1`. Logits are computed
    by the model's own head or its input embeddings, in blocks and only for the chosen tokens.

    Example:
        adapted:
          train:
            model: ./base
            data: {path: ./texts.jsonl, task: text}
            loss: {mlm: {share: 0.3}}
            sampler: {batch_shuffle: {batch_size: 64}}
            backbone: {text_encoder: {attention: bidirectional, pooling: mean}}
    """

    def __call__(self, hidden: Tensor, labels: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        return mean_of_scored(hidden, labels, head)
