"""Forward passes of an encoder, as other rooms call them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from emberge.contracts import Embedded, Encoder, TokenisedText
from emberge.encoding.chunks import Features, find_device, to_device


def forward(
    encoder: Encoder,
    texts: Sequence[TokenisedText],
    layers: Sequence[float] = (),
    autocast: torch.dtype | None = None,
) -> Embedded:
    """Embed one batch of texts on the encoder's device, and return the output with its graph."""
    return embed_features(encoder, _collate_on_device(encoder, texts), layers, autocast)


def embed_features(
    encoder: Encoder,
    features: Features,
    layers: Sequence[float] = (),
    autocast: torch.dtype | None = None,
) -> Embedded:
    """Embed features on the encoder's device, and return the output."""
    with torch.autocast(find_device(encoder).type, dtype=autocast, enabled=autocast is not None):
        return encoder(features, layers)


def compute_token_states(encoder: Encoder, texts: Sequence[TokenisedText]) -> tuple[Tensor, Tensor]:
    """Return a batch's hidden states [b, t, d], with their graph, and the mask [b, t] of tokens."""
    features = _collate_on_device(encoder, texts)
    mask = features.get("attention_mask")
    if mask is None:
        mask = torch.ones_like(features["input_ids"])
    return encoder.states(features), mask


def _collate_on_device(encoder: Encoder, texts: Sequence[TokenisedText]) -> Features:
    device = find_device(encoder)
    return {name: to_device(value, device) for name, value in encoder.collate(texts).items()}


def draws_random_numbers(encoder: Encoder, autocast: torch.dtype | None = None) -> bool:
    """Return whether a forward pass of the encoder in its present mode draws random numbers.

    One text is run, and the states of torch's generators before and after are compared. Configs are not
    checked, as dropout, a router's jitter and randomly skipped layers have different names in every model.
    """
    device = find_device(encoder)
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(gpus), torch.no_grad():
        states_before = _read_generator_states(gpus)
        forward(encoder, encoder.tokenise(["text"], prompt="", max_length=None), (), autocast)
        states_after = _read_generator_states(gpus)
    return any(not torch.equal(a, b) for a, b in zip(states_before, states_after, strict=True))


def _read_generator_states(gpus: Sequence[torch.device]) -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(gpu) for gpu in gpus)]
