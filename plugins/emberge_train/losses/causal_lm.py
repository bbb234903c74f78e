"""Next-token prediction: every token is predicted from those before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import TokenLoss, Tokens

from emberge_train.losses.token_prediction import UNSCORED, mean_of_scored, next_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class CausalLM(TokenLoss):
    """Prediction of every token from those before it (Radford et al., 2019; Brown et al., arXiv:2005.14165).

    All tokens except the first of each text are scored, special tokens and prompt tokens included. No token
    is hidden, so the model needs causal attention and no mask token.

    Example:
        pretrained:
          train:
            model: ./start
            data: {path: ./texts.jsonl, task: text}
            loss: causal_lm
            sampler: {batch_shuffle: {batch_size: 64}}
            backbone: {text_encoder: {pooling: last}}
    """

    @property
    def causal(self) -> bool:
        return True

    def corrupt(self, tokens: Tokens, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        labels = tokens.ids.copy()
        labels[:1] = UNSCORED
        return tokens.ids, labels

    def __call__(self, hidden: Tensor, labels: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        return mean_of_scored(*next_of(hidden, labels), head)
