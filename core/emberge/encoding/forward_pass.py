"""Forward passes of an encoder: the only place where models are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from emberge.contracts import Embedded, Encoder, TokenEncoder, TokenisedText
from emberge.encoding.chunks import Features, to_device


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
    """Embed features on the encoder's device, and return the output."""
    kind = device_of(encoder).type
    with torch.autocast(kind, dtype=autocast, enabled=autocast is not None):
        return encoder(features, layers)


def token_states(encoder: TokenEncoder, texts: Sequence[TokenisedText]) -> tuple[Tensor, Tensor]:
    """Return a batch's hidden states [b, t, d], with their graph, and the mask [b, t] of tokens."""
    features = _collate_on_device(encoder, texts)
    mask = features.get("attention_mask")
    if mask is None:
        mask = torch.ones_like(features["input_ids"])
    return encoder.states(features), mask


def embed_with_parameters(
    encoder: Encoder,
    parameters: Mapping[str, Tensor],
    texts: Sequence[TokenisedText],
    texts_at_once: int,
) -> Tensor:
    """Embed texts with the encoder's named parameters replaced; return embeddings [n, d] on the CPU.

    The values are on the encoder's device, and embeddings have a gradient with respect to them. Texts of
    similar length run together, `texts_at_once` at a time; their activations are computed again in the
    backward pass.
    """
    module = _CallableEncoder(encoder)
    inner_parameters = {f"inside.{name}": value for name, value in parameters.items()}

    def run(features: Features) -> Tensor:
        embeddings: Tensor = functional_call(module, inner_parameters, (features,))
        return embeddings

    order = sorted(range(len(texts)), key=lambda place: -len(texts[place].ids))
    chunks = [order[start : start + texts_at_once] for start in range(0, len(order), texts_at_once)]
    parts = [
        checkpoint(
            run,
            _collate_on_device(encoder, [texts[place] for place in chunk]),
            use_reentrant=False,
            preserve_rng_state=False,
        )
        for chunk in chunks
    ]
    return torch.cat(parts).cpu()[torch.tensor(order).argsort()]


class _CallableEncoder(nn.Module):
    """An encoder as a module, for `torch.func.functional_call`."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.inside = encoder.module
        # A function, as a module that is an attribute would be registered a second time.
        self._embed: Callable[[Features], Tensor] = lambda features: encoder(features).embeddings

    def forward(self, features: Features) -> Tensor:
        return self._embed(features)


def _collate_on_device(encoder: Encoder, texts: Sequence[TokenisedText]) -> Features:
    device = device_of(encoder)
    return {name: to_device(value, device) for name, value in encoder.collate(texts).items()}


def draws_random_numbers(encoder: Encoder, autocast: torch.dtype | None = None) -> bool:
    """Return whether a forward pass of the encoder in its present mode draws random numbers.

    One text is run, and the states of torch's generators before and after are compared. Configs are not
    checked, as dropout, a router's jitter and randomly skipped layers have different names in every model.
    """
    device = device_of(encoder)
    gpus = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(gpus), torch.no_grad():
        states_before = _read_generator_states(gpus)
        forward(encoder, encoder.tokenise(["text"], prompt="", max_length=None), (), autocast)
        states_after = _read_generator_states(gpus)
    return any(not torch.equal(a, b) for a, b in zip(states_before, states_after, strict=True))


def _read_generator_states(gpus: Sequence[torch.device]) -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(gpu) for gpu in gpus)]
