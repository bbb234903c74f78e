"""Embeddings of texts without gradients, for evaluation and mining."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emberge.contracts import Encoder, TokenisedText, make_content_key
from emberge.encoding.chunks import (
    choose_token_budget,
    cut_chunks,
    find_device,
    prefetch_chunks,
)
from emberge.encoding.forward_pass import embed_features
from emberge.encoding.reordered_weights import ReorderedWeights
from emberge.errors import CheckpointError

Progress = Callable[[int, int, str], None]
# Rows whose embeddings wait on the device before they are copied to the host.
ROWS_ON_DEVICE = 65536


def find_document_prompt(encoder: Encoder) -> str:
    """Return a model's prompt of documents, which some models name "passage"; "" if there is none."""
    prompts = encoder.prompts
    return prompts.get("document", prompts.get("passage", ""))


class TextEmbedder:
    """An embedder that tokenises and encodes each distinct text once, in chunks of similar length.

    `token_budget` is the padded size of a chunk; `progress(done, total, unit)` is called after every chunk,
    and `model` is its name in messages.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        token_budget: int | None = None,
        progress: Progress | None = None,
        model: str = "the model",
    ) -> None:
        self.encoder = encoder
        self.model = model
        self.token_budget = token_budget or choose_token_budget(
            find_device(encoder).type, training=False
        )
        self.progress = progress
        self._reordered = ReorderedWeights(encoder.module)

    def embed(
        self, texts: Sequence[str], *, prompt: str = "", max_length: int | None = None
    ) -> NDArray[np.float32]:
        """Return embeddings float32 [n, d] in the order of `texts`, each with `prompt` before it.

        Raises:
            CheckpointError: if embeddings are not finite.
        """
        keys = [make_content_key(text) for text in texts]
        text_by_key = dict(zip(keys, texts, strict=True))
        position_by_key = {key: i for i, key in enumerate(text_by_key)}
        order = np.fromiter((position_by_key[key] for key in keys), np.int64, len(texts))
        distinct_texts = list(text_by_key.values())
        tokens = self.encoder.tokenise(distinct_texts, prompt=prompt, max_length=max_length)
        return self.embed_tokens(tokens)[order]

    def embed_tokens(self, texts: Sequence[TokenisedText]) -> NDArray[np.float32]:
        """Return embeddings float32 [n, d] of tokenised texts.

        Raises:
            CheckpointError: if embeddings are not finite.
        """
        result = np.empty((len(texts), self.encoder.dimension), np.float32)
        pieces = cut_chunks([len(t.ids) for t in texts], self.token_budget)
        rows_on_device: list[tuple[NDArray[np.int64], Tensor]] = []
        done = on_device = 0
        with (
            self._switch_to_evaluation(),
            torch.inference_mode(),
            self._reordered.use_reordered(self.token_budget),
            prefetch_chunks(self.encoder, texts, pieces) as chunk_features,
        ):
            for index, piece in enumerate(pieces):
                out = embed_features(self.encoder, chunk_features[index]).embeddings
                rows_on_device.append((piece, out))
                on_device += len(piece)
                done += len(piece)
                if on_device >= ROWS_ON_DEVICE:
                    _copy_to_host(rows_on_device, result)
                    on_device = 0
                if self.progress is not None:
                    self.progress(done, len(texts), "texts")
            _copy_to_host(rows_on_device, result)
        non_finite_count = int((~np.isfinite(result).all(1)).sum())
        if non_finite_count:
            share = f"{non_finite_count:,} of {len(result):,} "
            raise CheckpointError(_describe_infinite(self.model, self.encoder.module, share))
        return result

    def mask_text_tokens(self, texts: Sequence[TokenisedText]) -> list[NDArray[np.bool_]]:
        """Return a mask of each text's own tokens: all but those at its ends that an empty text also has."""
        (empty,) = self.encoder.tokenise([""], prompt="", max_length=None)
        return [_mask_own_tokens(text.ids, empty.ids) for text in texts]

    def embed_chunks(
        self, texts: Sequence[TokenisedText]
    ) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
        """Yield the indices of texts of similar length, and their embeddings [n, *e] on the device.

        Embeddings of every kind come as the encoder returns them: sparse vectors as dense rows, and vectors
        of tokens padded to the longest text of the chunk. Only one chunk is in memory at a time.

        Raises:
            CheckpointError: if embeddings are not finite.
        """
        pieces, done = cut_chunks([len(text.ids) for text in texts], self.token_budget), 0
        with (
            self._switch_to_evaluation(),
            prefetch_chunks(self.encoder, texts, pieces) as chunk_features,
        ):
            for index, piece in enumerate(pieces):
                # The mode of inference would reach into the caller's code if it went on while this waits.
                with torch.inference_mode(), self._reordered.use_reordered(self.token_budget):
                    out = embed_features(self.encoder, chunk_features[index]).embeddings.float()
                if not bool(torch.isfinite(out).all()):
                    raise CheckpointError(_describe_infinite(self.model, self.encoder.module))
                yield piece, out
                done += len(piece)
                if self.progress is not None:
                    self.progress(done, len(texts), "texts")

    @contextlib.contextmanager
    def _switch_to_evaluation(self) -> Iterator[None]:
        """Keep the module in evaluation mode (no dropout) during the `with` block."""
        module = self.encoder.module
        training = module.training
        module.eval()
        try:
            yield
        finally:
            module.train(training)


def _describe_infinite(model: str, module: torch.nn.Module, share: str = "") -> str:
    """Return the message that a model's embeddings, or a `share` of them, are not finite, with the cause."""
    remedy = "is the model sound? Make it again, or set dtype: float32 in its backbone"
    for name, weight in module.named_parameters():
        if not bool(weight.isfinite().all()):
            remedy = f"'{name}' has NaN or infinite values; make the model again"
            break
    return f"{model}: {share}embeddings are not finite; {remedy}"


def _mask_own_tokens(ids: Sequence[int], special: Sequence[int]) -> NDArray[np.bool_]:
    """Return a mask of `ids` that is False for the special tokens (`special`) at both ends."""
    prefix_length = _measure_common_prefix(ids, special)
    suffix_length = _measure_common_prefix(ids[prefix_length:][::-1], special[prefix_length:][::-1])
    mask = np.zeros(len(ids), bool)
    mask[prefix_length : len(ids) - suffix_length] = True
    return mask


def _measure_common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common prefix of two sequences of ids."""
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _copy_to_host(waiting: list[tuple[NDArray[np.int64], Tensor]], result: NDArray[Any]) -> None:
    """Copy the rows waiting on the device to the host in one transfer."""
    if waiting:
        rows = np.concatenate([piece for piece, _ in waiting])
        result[rows] = torch.cat([out for _, out in waiting]).float().cpu().numpy()
        waiting.clear()
