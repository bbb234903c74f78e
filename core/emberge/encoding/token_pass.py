"""Passes of losses over tokens: a batch's corrupted texts in chunks, each with its share of the loss.

Such a loss is a mean over the scored places of the whole batch, and their number is known before the first
chunk runs. So each chunk goes forward and backward once, weighed by its places, and nothing of it is kept:
neither its activations nor its logits are in memory together with another chunk's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emberge.contracts.backbone import PredictsTokens, TokenisedText
from emberge.contracts.loss import TokenLoss, Tokens
from emberge.encoding.chunks import chunks, padded_tokens
from emberge.encoding.gradient_cache import EncodePlan, PassResult, device_of
from emberge.encoding.prefetch import feed, to_device
from emberge.seeds import stable_seed

__all__ = ["UNSCORED", "CorruptedText", "corrupted", "predict_and_backward"]

UNSCORED = -100


@dataclass(frozen=True, slots=True, eq=False)
class CorruptedText:
    """Token ids of a text as a loss has changed them, and the labels [t] of its places."""

    text: TokenisedText
    labels: NDArray[np.int64]


def corrupted(
    encoder: PredictsTokens, text: TokenisedText, loss: TokenLoss, seed: int
) -> CorruptedText:
    """Return a text as the loss corrupts it, special tokens and the prompt's spared."""
    ids = np.asarray(text.ids, np.int64)
    spared = np.array(encoder.special(ids), bool)
    spared[: text.prompt_length] = True
    changed, labels = loss.corrupt(Tokens(ids, spared, encoder.mask_id, encoder.vocabulary), seed)
    return CorruptedText(TokenisedText(changed.tolist(), text.prompt_length), labels)


def predict_and_backward(
    encoder: PredictsTokens,
    texts: Sequence[CorruptedText],
    loss: TokenLoss,
    plan: EncodePlan,
    *,
    seed: int,
    weight: float = 1.0,
) -> PassResult:
    """Take a loss over all ranks' texts, and add this rank's share of its gradients, times `weight`.

    The loss of the result is that share, too.
    """
    lengths = np.fromiter((len(t.labels) for t in texts), np.int64, len(texts))
    scored = np.fromiter((int((t.labels != UNSCORED).sum()) for t in texts), np.int64, len(texts))
    # Counts of places are far below the integers that float64 has.
    places = plan.ranks.total(torch.tensor(float(scored.sum()), dtype=torch.float64)).item()
    pieces = chunks(lengths, plan.token_budget)
    device = device_of(encoder)
    total = torch.zeros((), device=device)
    with feed(encoder, [t.text for t in texts], pieces) as given:
        for index, piece in enumerate(pieces):
            # A killed training that goes on draws the same dropout.
            torch.manual_seed(stable_seed(seed, index))
            features = given[index]
            labels = _labels([texts[i].labels for i in piece], features)
            with torch.autocast(
                device.type, dtype=plan.autocast, enabled=plan.autocast is not None
            ):
                value = loss(encoder.states(features), labels, encoder.logits)
            share = value * (weight * float(scored[piece].sum()) / max(places, 1.0))
            if share.requires_grad:
                share.backward()  # type: ignore[no-untyped-call]
            total = total + share.detach()
    padded = padded_tokens(lengths, pieces)
    return PassResult(total, int(lengths.sum()), padded, padded)


def _labels(labels: Sequence[NDArray[np.int64]], features: Mapping[str, Tensor]) -> Tensor:
    """Return labels at the places of a batch of features [b, t], UNSCORED where that is padded."""
    ids = features["input_ids"]
    flat = to_device(torch.from_numpy(np.concatenate(labels)), ids.device)
    mask = features.get("attention_mask")
    if mask is None:
        return flat.view(ids.shape)
    placed = torch.full_like(ids, UNSCORED)
    placed[mask.bool()] = flat
    return placed
