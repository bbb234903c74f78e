"""Losses over tokens text by text, without gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from emberge.contracts import TokenisedText, TokenLoss, TokenPredictor
from emberge.encoding.chunks import chunks
from emberge.encoding.prefetch import feed, to_device
from emberge.encoding.token_cache import Ragged
from emberge.encoding.token_pass import UNSCORED, corrupted

# Texts that are cut into chunks together.
TEXTS_AT_ONCE = 1024


@dataclass(frozen=True, eq=False)
class TokenScores:
    """Losses of texts: the sum of each in `nats` [n], over its `scored` [n] places of its `tokens` [n].

    `tokens` are the text's own, without special ones and a prompt's.
    """

    nats: NDArray[np.float64]
    scored: NDArray[np.int64]
    tokens: NDArray[np.int64]


def score_texts(
    encoder: TokenPredictor,
    texts: Ragged,
    loss: TokenLoss,
    *,
    seed_of: Callable[[int], int],
    token_budget: int,
) -> TokenScores:
    """Return the losses of texts, which run in chunks of `token_budget` tokens.

    A text is corrupted by the seed of its place, and so in the same way for every model with its tokens.
    """
    nats = np.zeros(len(texts))
    scored, tokens = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.int64)
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        places = range(start, min(start + TEXTS_AT_ONCE, len(texts)))
        given = [corrupted(encoder, texts[i], loss, seed_of(i)) for i in places]
        for i, one in zip(places, given, strict=True):
            scored[i] = int((one.labels != UNSCORED).sum())
            tokens[i] = _own_tokens(encoder, texts[i])
        pieces = chunks([len(one.labels) for one in given], token_budget)
        with torch.no_grad(), feed(encoder, [one.text for one in given], pieces) as features:
            for number, piece in enumerate(pieces):
                batch = features[number]
                states, mask = encoder.states(batch), batch.get("attention_mask")
                for row, one in enumerate(piece):
                    own = states[row] if mask is None else states[row][mask[row].bool()]
                    labels = to_device(torch.from_numpy(given[one].labels), own.device)
                    mean = loss(own[None], labels[None], encoder.logits)
                    nats[start + one] = float(mean) * scored[start + one]
    return TokenScores(nats, scored, tokens)


def _own_tokens(encoder: TokenPredictor, text: TokenisedText) -> int:
    own = ~np.array(encoder.special(np.asarray(text.ids, np.int64)), bool)
    own[: text.prompt_length] = False
    return int(own.sum())
