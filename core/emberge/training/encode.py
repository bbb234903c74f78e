"""The only caller of a model: embeddings for evaluation, and the forward and backward passes of training.

A batch of texts is cut into chunks of like length. Each chunk runs by itself, its random numbers seeded by
its place; the loss sees all embeddings at once and gives back their gradients; each chunk then takes its
share through the model. A chunk whose activations do not fit in memory until then is run again (Gao et al.,
2021, arXiv:2101.06983). As every chunk sees the same texts, seed and order either way, keeping or
recomputing changes no bit of the result.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emberge.contracts.backbone import Embedded, Encoder, TokenisedText
from emberge.errors import PluginError
from emberge.seeds import stable_seed
from emberge.training.chunks import chunks, padded_tokens
from emberge.training.memory import saved_bytes
from emberge.training.tokens import TokenCache

__all__ = ["EncodePlan", "Encoded", "TextEmbedder", "default_token_budget", "encode_and_backward"]

Progress = Callable[..., None]
# Rows whose embeddings wait on the device before they are copied to the host.
ROWS_ON_DEVICE = 65536


def default_token_budget(device: str, *, training: bool) -> int:
    """Tokens of a chunk: it depends on the kind of device alone, so that equal machines sum alike."""
    if device.startswith("cpu"):
        return 2048  # what keeps a small model's activations near the cache; measured
    return 16384 if training else 65536


@dataclass(frozen=True)
class EncodePlan:
    """How a batch runs: tokens of a chunk, how many activations are kept, precision, dropout.

    Activations are kept for `kept_tokens` tokens, or if that is None for as many as fit into `kept_bytes`;
    with neither all are: the plain pass. `autocast` is a dtype or None for the weights' own.
    """

    token_budget: int
    kept_tokens: int | None = None
    kept_bytes: int | None = None
    autocast: torch.dtype | None = None
    dropout: bool = True


@dataclass(frozen=True, eq=False)
class Encoded:
    """Embeddings of a batch's texts [n, d] as leaves of the loss's graph, with those of asked layers."""

    embeddings: Tensor
    layers: Mapping[float, Tensor] = field(default_factory=dict)

    @property
    def leaves(self) -> list[Tensor]:
        """Everything that the loss may send a gradient to."""
        return [self.embeddings, *self.layers.values()]


@dataclass(frozen=True)
class Passed:
    """What a training pass leaves: the loss (detached, on the device), tokens with and without padding."""

    loss: Tensor
    tokens: int
    padded: int


def encode_and_backward(
    encoder: Encoder,
    texts: Sequence[TokenisedText],
    objective: Callable[[Encoded], Tensor],
    plan: EncodePlan,
    *,
    seed: int,
    layers: Sequence[float] = (),
) -> Passed:
    """Embed a batch, take the loss of all embeddings, and add its gradients to the model's.

    `objective` gets the embeddings in the order of `texts` and returns a scalar; anything else that it
    depends on (a learned temperature) gets its gradient from the same backward pass.
    """
    lengths = np.fromiter((len(t.ids) for t in texts), np.int64, len(texts))
    pieces = chunks(lengths, plan.token_budget)
    runner = _Chunks(encoder, texts, pieces, plan, seed, tuple(layers))
    encoded, graphs = runner.first()
    loss = objective(encoded)
    loss.backward()  # type: ignore[no-untyped-call]
    runner.second(encoded, graphs)
    return Passed(loss.detach(), int(lengths.sum()), padded_tokens(lengths, pieces))


@dataclass(frozen=True, eq=False)
class _Chunks:
    """A batch's chunks, and the two passes over them."""

    encoder: Encoder
    texts: Sequence[TokenisedText]
    pieces: Sequence[NDArray[np.int64]]
    plan: EncodePlan
    seed: int
    layers: tuple[float, ...]

    def first(self) -> tuple[Encoded, list[list[Tensor] | None]]:
        """All embeddings as leaves, and the graphs of the chunks that keep theirs."""
        device = _device(self.encoder)
        left = self.plan.kept_tokens
        measured = left is None and self.plan.kept_bytes is not None
        graphs: list[list[Tensor] | None] = []
        values: list[list[Tensor]] = []
        for index in range(len(self.pieces)):
            size = self._size(index)
            keep = left is None or left >= size
            with contextlib.ExitStack() as stack:
                if not keep:
                    stack.enter_context(torch.no_grad())
                counter = stack.enter_context(saved_bytes(self.encoder.module)) if measured else [0]
                outputs = self._run(index)
            if measured:
                # The first chunk is the longest, so none of the others needs more for a token.
                left = int((self.plan.kept_bytes or 0) / max(1, counter[0]) * size)
                measured = False
            left = left - size if left is not None and keep else left
            graphs.append(outputs if keep else None)
            values.append([o.detach() for o in outputs])
        order = torch.from_numpy(np.argsort(np.concatenate(self.pieces))).to(device)
        leaves = [torch.cat(v)[order].float().requires_grad_() for v in zip(*values, strict=True)]
        return Encoded(leaves[0], dict(zip(self.layers, leaves[1:], strict=True))), graphs

    def _size(self, index: int) -> int:
        piece = self.pieces[index]
        return len(piece) * max(len(self.texts[i].ids) for i in piece)

    def second(self, encoded: Encoded, graphs: list[list[Tensor] | None]) -> None:
        """Send the gradients of the embeddings through the model, chunk by chunk in a fixed order."""
        device = _device(self.encoder)
        for index, piece in enumerate(self.pieces):
            outputs, graphs[index] = graphs[index], None
            if outputs is None:
                outputs = self._run(index)
            rows = torch.from_numpy(np.ascontiguousarray(piece)).to(device)
            pairs = [
                (output, leaf.grad[rows].to(output.dtype))
                for output, leaf in zip(outputs, encoded.leaves, strict=True)
                if leaf.grad is not None and output.requires_grad
            ]
            if pairs:
                torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])

    def _run(self, index: int) -> list[Tensor]:
        # Seeding before every chunk instead of keeping generator states: both passes, and a run that was
        # killed and continued, draw the same dropout.
        if self.plan.dropout:
            torch.manual_seed(stable_seed(self.seed, index))
        texts = [self.texts[i] for i in self.pieces[index]]
        out = _forward(self.encoder, texts, self.layers, self.plan.autocast)
        return [out.embeddings, *(out.layers[layer] for layer in self.layers)]


def _forward(
    encoder: Encoder,
    texts: Sequence[TokenisedText],
    layers: Sequence[float] = (),
    autocast: torch.dtype | None = None,
) -> Embedded:
    device = _device(encoder)
    features = {
        name: value.to(device, non_blocking=True) for name, value in encoder.collate(texts).items()
    }
    with torch.autocast(device.type, dtype=autocast, enabled=autocast is not None):
        embedded = encoder(features, layers)
    if embedded.auxiliary is not None and torch.is_grad_enabled():
        raise PluginError(
            f"{type(encoder).__name__} adds a loss of its own (auxiliary), which cannot be trained yet"
        )
    return embedded


def _device(encoder: Encoder) -> torch.device:
    return next(encoder.module.parameters()).device


class TextEmbedder:
    """Turns texts into embeddings: tokenised once, equal texts encoded once, in chunks of like length.

    `store` is a folder for token ids that other models with the same tokenizer may share; `token_budget`
    is the padded size of a chunk; `progress(done, total, unit)` is told after every chunk.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        store: Path | None = None,
        token_budget: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.encoder = encoder
        self.store = store
        self.token_budget = token_budget or default_token_budget(
            _device(encoder).type, training=False
        )
        self.progress = progress
        self._caches: dict[tuple[str, int | None], TokenCache] = {}

    def embed(
        self, texts: Sequence[str], *, prompt: str = "", max_length: int | None = None
    ) -> NDArray[np.float32]:
        """Embeddings float32 [n, d] in the order of `texts`, each with `prompt` before it."""
        distinct = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        place = np.fromiter((distinct[text] for text in texts), np.int64, len(texts))
        tokens = self._tokens(list(distinct), prompt, max_length)
        return self._encode(tokens)[place]

    def _tokens(
        self, texts: Sequence[str], prompt: str, max_length: int | None
    ) -> Sequence[TokenisedText]:
        if self.store is None:
            return self.encoder.tokenise(texts, prompt=prompt, max_length=max_length)
        key = (prompt, max_length)
        if key not in self._caches:
            self._caches[key] = TokenCache(self.store, self.encoder, prompt, max_length)
        return self._caches[key].tokens(texts)

    def _encode(self, texts: Sequence[TokenisedText]) -> NDArray[np.float32]:
        result = np.empty((len(texts), self.encoder.dimension), np.float32)
        pieces = chunks([len(t.ids) for t in texts], self.token_budget)
        module = self.encoder.module
        training = module.training
        module.eval()
        waiting: list[tuple[NDArray[np.int64], Tensor]] = []
        done = held = 0
        try:
            with torch.inference_mode():
                for piece in pieces:
                    out = _forward(self.encoder, [texts[i] for i in piece]).embeddings
                    waiting.append((piece, out))
                    held += len(piece)
                    done += len(piece)
                    if held >= ROWS_ON_DEVICE:
                        held = _collect(waiting, result)
                    if self.progress is not None:
                        self.progress(done, len(texts), "texts")
                _collect(waiting, result)
        finally:
            module.train(training)
        return result


def _collect(waiting: list[tuple[NDArray[np.int64], Tensor]], result: NDArray[Any]) -> int:
    """Copy what waits on the device with one transfer, which is the only one that waits for it."""
    if waiting:
        rows = np.concatenate([piece for piece, _ in waiting])
        result[rows] = torch.cat([out for _, out in waiting]).float().cpu().numpy()
        waiting.clear()
    return 0
