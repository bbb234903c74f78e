"""Losses over tokens: masked tokens at their places or from the place before, and every next token."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import PositiveShare, Share, TokenLoss, Tokens, draw_bits, make_seed
from emberge.contracts import UNSCORED_LABEL, LinearHead
from emberge.numerics import apply_blockwise

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


# Logits that `apply_blockwise` computes at once.
KEPT_LOGITS = 2**22
# Logits of a block, 64 MiB in float32, and its places: with fewer the head's gradient takes most of the time.
BLOCK_LOGITS, LEAST_ROWS, MOST_ROWS = 2**24, 64, 512


@dataclass(frozen=True, kw_only=True)
class HiddenTokens(TokenLoss):
    """Loss of hidden tokens, drawn with the probability `share` from all but special tokens.

    Of the chosen tokens, the share `masked` is replaced by the mask token, the share `random` by a random
    token, and the rest is unchanged; all chosen tokens are scored. Losses with an equal `share` choose the
    same tokens of a text.
    """

    share: PositiveShare = 0.3
    masked: Share = 1.0
    random: Share = 0.0

    def __post_init__(self) -> None:
        if self.masked + self.random > 1 + 1e-9:
            raise ValueError(
                f"masked and random are shares of the chosen tokens that add up to at most 1, not "
                f"{self.masked:g} and {self.random:g}"
            )

    def corrupt(self, tokens: Tokens, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        import numpy as np

        size = len(tokens.ids)
        # The text is part of the key, or texts of one length would hide the same places.
        key = (seed, "hidden", np.asarray(tokens.ids, np.int64).tobytes())
        bits = draw_bits(3 * size, make_seed(*key)).reshape(3, size)
        chance = (bits[:2] >> np.uint64(11)) * 2.0**-53
        is_chosen = (chance[0] < self.share) & ~tokens.spared
        is_hidden = is_chosen & (chance[1] < self.masked)
        replaced = is_chosen & ~is_hidden & (chance[1] < self.masked + self.random)
        random_tokens = (bits[2] % np.uint64(tokens.vocabulary)).astype(np.int64)
        assert tokens.mask_id is not None
        ids = np.where(is_hidden, tokens.mask_id, np.where(replaced, random_tokens, tokens.ids))
        labels = np.where(is_chosen, tokens.ids, UNSCORED_LABEL)
        return ids.astype(np.int64), labels.astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class MLM(HiddenTokens):
    """Prediction of hidden tokens at their places (Devlin et al., 2019, arXiv:1810.04805).

    Each token that is neither special nor part of a prompt is chosen with the probability `share`. Of the
    chosen tokens, the share `masked` is replaced by the mask token, the share `random` by a random token, and
    the rest is unchanged. The loss is the mean cross-entropy of all chosen tokens. By default all chosen
    tokens are masked (BidirLM, arXiv:2604.02045); BERT uses `masked: 0.8, random: 0.1`. Logits are computed
    by the model's own head or its input embeddings, in blocks and only for the chosen tokens.

    Example:
        data: {path: ./texts.jsonl, task: text}
        loss: {mlm: {share: 0.3}}
        backbone: {text_encoder: {attention: bidirectional, pooling: mean}}
    """

    def __call__(self, hidden: Tensor, labels: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        return compute_scored_mean(hidden, labels, head)


@dataclass(frozen=True, kw_only=True)
class MNTP(HiddenTokens):
    """Prediction of hidden tokens from the state before each (BehnamGhader et al., 2024, arXiv:2404.05961).

    A causal model predicts each token from the state before it, so its head still fits after attention
    becomes bidirectional. Tokens are chosen and hidden as in `mlm`; by default all chosen tokens are masked
    (BidirLM, arXiv:2604.02045: `share` 0.3 for Qwen3 0.6B, 0.4 for Gemma 3 270M). LLM2Vec uses `share: 0.2,
    masked: 0.8, random: 0.1`. The first token of a text has no state before it and is never chosen.

    Example:
        data: {path: ./texts.jsonl, task: text}
        loss: {mntp: {share: 0.3}}
        backbone: {text_encoder: {attention: bidirectional, pooling: mean}}
    """

    def corrupt(self, tokens: Tokens, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        never_chosen = tokens.spared.copy()
        never_chosen[:1] = True
        return super().corrupt(dataclasses.replace(tokens, spared=never_chosen), seed)

    def __call__(self, hidden: Tensor, labels: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        return compute_scored_mean(*shift_labels(hidden, labels), head)


@dataclass(frozen=True, kw_only=True)
class CausalLM(TokenLoss):
    """Prediction of every token from those before it (Radford et al., 2019; Brown et al., arXiv:2005.14165).

    All tokens except the first of each text are scored, special tokens and prompt tokens included. No token
    is hidden, so the model needs causal attention and no mask token.

    Example:
        model: ./start
        data: {path: ./texts.jsonl, task: text}
        loss: causal_lm
        backbone: {text_encoder: {pooling: last}}
    """

    causal = True

    def corrupt(self, tokens: Tokens, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        labels = tokens.ids.copy()
        labels[:1] = UNSCORED_LABEL
        return tokens.ids, labels

    def __call__(self, hidden: Tensor, labels: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        return compute_scored_mean(*shift_labels(hidden, labels), head)


def compute_scored_mean(hidden: Tensor, labels: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the mean cross-entropy of the scored labels [b, t], from the states at the same places.

    Logits are computed in blocks, only for scored places. Without a scored place the mean is 0.
    """
    import torch
    from torch.nn.functional import cross_entropy

    is_scored = labels != UNSCORED_LABEL
    states, scored_labels = hidden[is_scored], labels[is_scored]
    if not len(states):
        return hidden.sum() * 0
    if isinstance(head, LinearHead) and _is_fusible(states, head):
        return _compute_fused_loss(states, scored_labels, head)
    with torch.no_grad():
        vocabulary = head(states[:1]).shape[-1]

    def block(rows: slice) -> Tensor:
        logits = head(states[rows])
        wide = torch.promote_types(logits.dtype, torch.float32)
        return cross_entropy(logits.to(wide), scored_labels[rows], reduction="none")

    return apply_blockwise(len(states), vocabulary, block).mean()


def _is_fusible(states: Tensor, head: LinearHead) -> bool:
    """Return whether a fused function computes the loss and gradients of logit blocks faster.

    It computes the logits once instead of twice, if they would not all be kept in memory: on a CPU in float32
    it is 1.8 (50,000 tokens) to 3.1 times as fast (150,000). Other devices are not measured.
    """
    import torch

    is_cpu_float32 = (
        states.device.type == "cpu" and states.dtype == head.weight.dtype == torch.float32
    )
    small = len(states) * len(head.weight) <= KEPT_LOGITS
    return is_cpu_float32 and not small and not torch.is_autocast_enabled("cpu")


def _compute_fused_loss(states: Tensor, labels: Tensor, head: LinearHead) -> Tensor:
    import torch

    rows = min(MOST_ROWS, max(LEAST_ROWS, BLOCK_LOGITS // len(head.weight)))
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=rows, chunking_method=None)
    return torch.nn.functional.linear_cross_entropy(
        head.transform(states), head.weight, labels, linear_bias=head.bias, options=options
    )


def shift_labels(hidden: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return states and labels, with each label moved to the previous place, whose state predicts it."""
    return hidden[:, :-1], labels[:, 1:]
