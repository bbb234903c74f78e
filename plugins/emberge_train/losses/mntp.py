"""Masked next-token prediction: hidden tokens are predicted from the place before their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Tokens

from emberge_train.losses.token_prediction import HiddenTokens, mean_of_scored, next_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class MNTP(HiddenTokens):
    """Prediction of hidden tokens from the state before each (BehnamGhader et al., 2024, arXiv:2404.05961).

    A causal model predicts each token from the state before it, so its head still fits after attention
    becomes bidirectional. Tokens are chosen and hidden as in `mlm`; by default all chosen tokens are masked
    (BidirLM, arXiv:2604.02045: `share` 0.3 for Qwen3 0.6B, 0.4 for Gemma 3 270M). LLM2Vec uses `share: 0.2,
    masked: 0.8, random: 0.1`. The first token of a text has no state before it and is never chosen.

    Example:
        adapted:
          train:
            model: ./base
            data: {path: ./texts.jsonl, task: text}
            loss: {mntp: {share: 0.3}}
            sampler: {batch_shuffle: {batch_size: 64}}
            backbone: {text_encoder: {attention: bidirectional, pooling: mean}}
    """

    def corrupt(self, tokens: Tokens, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        never_chosen = tokens.spared.copy()
        never_chosen[:1] = True
        return super().corrupt(dataclasses.replace(tokens, spared=never_chosen), seed)

    def __call__(self, hidden: Tensor, labels: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        return mean_of_scored(*next_of(hidden, labels), head)
