"""Embeddings of texts without gradients, for evaluation and mining.

Nothing else calls a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emberge.contracts.backbone import Encoder, TokenisedText
from emberge.encoding.chunks import chunks
from emberge.encoding.gradient_cache import (
    BatchEmbeddings,
    EncodePlan,
    PassResult,
    device_of,
    embedded,
    encode_and_backward,
)
from emberge.encoding.packed_linear import PackedWeights
from emberge.encoding.prefetch import feed
from emberge.encoding.token_cache import TokenCache

__all__ = [
    "BatchEmbeddings",
    "EncodePlan",
    "PassResult",
    "TextEmbedder",
    "default_token_budget",
    "encode_and_backward",
]

Progress = Callable[..., None]
# Rows whose embeddings wait on the device before they are copied to the host.
ROWS_ON_DEVICE = 65536


def default_token_budget(device: str, *, training: bool) -> int:
    """Return the tokens of a chunk: by the kind of device alone, so that equal machines sum alike."""
    if device.startswith("cpu"):
        return 2048  # what keeps a small model's activations near the cache; measured
    return 16384 if training else 65536


class TextEmbedder:
    """Embedder of texts: tokenised once, equal texts encoded once, in chunks of like length.

    `store` is a folder for token ids that other models with the same tokenizer may share; `token_budget`
    is the padded size of a chunk; `progress(done, total, unit)` is called after every chunk.
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
            device_of(encoder).type, training=False
        )
        self.progress = progress
        self._caches: dict[tuple[str, int | None], TokenCache] = {}
        self._packed = PackedWeights(encoder.module)

    def embed(
        self, texts: Sequence[str], *, prompt: str = "", max_length: int | None = None
    ) -> NDArray[np.float32]:
        """Return embeddings float32 [n, d] in the order of `texts`, each with `prompt` before it."""
        distinct = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        place = np.fromiter((distinct[text] for text in texts), np.int64, len(texts))
        tokens = self._tokens(list(distinct), prompt, max_length)
        return self.embed_tokens(tokens)[place]

    def _tokens(
        self, texts: Sequence[str], prompt: str, max_length: int | None
    ) -> Sequence[TokenisedText]:
        if self.store is None:
            return self.encoder.tokenise(texts, prompt=prompt, max_length=max_length)
        key = (prompt, max_length)
        if key not in self._caches:
            self._caches[key] = TokenCache(self.store, self.encoder, prompt, max_length)
        return self._caches[key].tokens(texts)

    def embed_tokens(self, texts: Sequence[TokenisedText]) -> NDArray[np.float32]:
        """Return embeddings float32 [n, d] of texts that are token ids already."""
        result = np.empty((len(texts), self.encoder.dimension), np.float32)
        pieces = chunks([len(t.ids) for t in texts], self.token_budget)
        module = self.encoder.module
        training = module.training
        module.eval()
        waiting: list[tuple[NDArray[np.int64], Tensor]] = []
        done = on_device = 0
        try:
            with (
                torch.inference_mode(),
                self._packed.used(self.token_budget),
                feed(self.encoder, texts, pieces) as given,
            ):
                for index, piece in enumerate(pieces):
                    out = embedded(self.encoder, given[index]).embeddings
                    waiting.append((piece, out))
                    on_device += len(piece)
                    done += len(piece)
                    if on_device >= ROWS_ON_DEVICE:
                        on_device = _collect(waiting, result)
                    if self.progress is not None:
                        self.progress(done, len(texts), "texts")
                _collect(waiting, result)
        finally:
            module.train(training)
        return result


def _collect(waiting: list[tuple[NDArray[np.int64], Tensor]], result: NDArray[Any]) -> int:
    """Copy the rows that wait on the device to the host in one transfer, and return 0 rows left."""
    if waiting:
        rows = np.concatenate([piece for piece, _ in waiting])
        result[rows] = torch.cat([out for _, out in waiting]).float().cpu().numpy()
        waiting.clear()
    return 0
