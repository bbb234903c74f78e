"""One forward pass of an encoder: the only calls of a model, whatever the passes are for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from emberge.contracts import Embedded, Encoder, TokenisedText
from emberge.encoding.prefetch import Features, to_device

__all__ = ["device_of", "draws_random_numbers", "embedded", "forward"]


def device_of(encoder: Encoder) -> torch.device:
    """Return the device of an encoder's weights."""
    return next(encoder.module.parameters()).device


def forward(
    encoder: Encoder,
    texts: Sequence[TokenisedText],
    layers: Sequence[float] = (),
    autocast: torch.dtype | None = None,
) -> Embedded:
    """Embed one batch of texts on the encoder's device, and return the output with its graph."""
    return embedded(encoder, _collate_on_device(encoder, texts), layers, autocast)


def embedded(
    encoder: Encoder,
    features: Features,
    layers: Sequence[float] = (),
    autocast: torch.dtype | None = None,
) -> Embedded:
    """Embed features that are on the encoder's device, and return the output."""
    kind = device_of(encoder).type
    with torch.autocast(kind, dtype=autocast, enabled=autocast is not None):
        return encoder(features, layers)


def _collate_on_device(encoder: Encoder, texts: Sequence[TokenisedText]) -> Features:
    device = device_of(encoder)
    return {name: to_device(value, device) for name, value in encoder.collate(texts).items()}


def draws_random_numbers(encoder: Encoder, autocast: torch.dtype | None = None) -> bool:
    """Return whether a forward pass of the encoder, as it is set now, draws random numbers of any kind.

    One text is run, and the state of torch's generators compared: dropout, the jitter of a router and layers
    that are skipped at random have different names in every model.
    """
    device = device_of(encoder)
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(gpus), torch.no_grad():
        before = _generator_states(gpus)
        forward(encoder, encoder.tokenise(["text"], prompt="", max_length=None), (), autocast)
        after = _generator_states(gpus)
    return any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


def _generator_states(gpus: Sequence[torch.device]) -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(gpu) for gpu in gpus)]
