"""Vectors of single tokens: a teacher's embeddings of them, weighted by how rare the tokens are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from emberge import CheckpointError, TokenisedText
from numpy.typing import NDArray

if TYPE_CHECKING:
    from emberge.encoding import TextEmbedder

# Number of texts whose tokens are counted at once.
_TEXTS_AT_ONCE = 4096
# A token of a text that any tokenizer knows, beside which special tokens are found.
_PROBE = "a"


def embed_tokens(embedder: TextEmbedder, size: int) -> NDArray[np.float32]:
    """Return the teacher's embedding of each token, float32 [size, d].

    Token t is embedded as a text of its own, between the special tokens that the teacher's tokenizer puts
    around a text (model2vec: Tulkens and van Dongen, 2024).

    Raises:
        CheckpointError: if embeddings are not finite.
    """
    (probe,) = embedder.tokenise([_PROBE])
    (own,) = embedder.text_tokens([probe])
    places = np.flatnonzero(own)
    before = list(probe.ids[: places[0]]) if len(places) else list(probe.ids)
    after = list(probe.ids[places[-1] + 1 :]) if len(places) else []
    texts = [TokenisedText([*before, token, *after]) for token in range(size)]
    return embedder.embed_tokens(texts)


def count_tokens(
    tokenise: Callable[[Sequence[str]], Iterable[Sequence[int]]], texts: Iterable[str], size: int
) -> NDArray[np.int64]:
    """Return how often each token occurs in texts, int64 [size]."""
    counts = np.zeros(size, np.int64)
    waiting: list[str] = []

    def add() -> None:
        nonlocal counts
        for ids in tokenise(waiting):
            counts += np.bincount(np.asarray(ids, np.int64), minlength=size)
        waiting.clear()

    for text in texts:
        waiting.append(text)
        if len(waiting) >= _TEXTS_AT_ONCE:
            add()
    add()
    return counts


def estimate_probabilities(counts: NDArray[np.int64] | None, size: int) -> NDArray[np.float64]:
    """Return each token's probability, float64 [size], which sums to 1.

    Counts have one added to each. Without counts, token t is taken to be the t-th most frequent one, with a
    probability in inverse proportion to its rank (Zipf, 1949), as vocabularies are roughly sorted.
    """
    weights = counts + 1.0 if counts is not None else 1.0 / (np.arange(size) + 1.0)
    return np.asarray(weights / weights.sum(), np.float64)


def weigh_tokens(
    vectors: NDArray[np.float32],
    probabilities: NDArray[np.float64],
    *,
    coefficient: float,
    dimension: int | None,
) -> NDArray[np.float32]:
    """Return vectors of tokens whose mean over a text is its static embedding, float32 [n, dimension or d].

    The mean of all tokens' vectors, by their probabilities, is taken off. With a `dimension`, the vectors are
    projected on that many principal components. Each vector is multiplied by a / (a + p), with `coefficient`
    a and its probability p (SIF: Arora et al., 2017, openreview SyK00v5xx).

    Raises:
        CheckpointError: if there are fewer components than `dimension`.
    """
    rows = np.asarray(vectors, np.float64)
    rows = rows - probabilities @ rows
    if dimension is not None:
        if dimension > min(rows.shape):
            raise CheckpointError(
                f"vectors of {rows.shape[1]} numbers have no {dimension} principal components; lower it"
            )
        _, axes = np.linalg.eigh(rows.T @ rows)
        rows = rows @ axes[:, ::-1][:, :dimension]
    weights = coefficient / (coefficient + probabilities)
    return np.ascontiguousarray(rows * weights[:, None], np.float32)


def read_tokenizer(folder: Any) -> Any:
    """Return the tokenizer of a model folder in its fast form, without truncation and padding.

    Raises:
        CheckpointError: if it cannot be loaded, or has no fast form, which static models need.
    """
    from emberge.model_folder import load_tokenizer

    tokenizer = getattr(load_tokenizer(folder), "backend_tokenizer", None)
    if tokenizer is None:
        raise CheckpointError(
            f"{folder}: its tokenizer has no fast form (tokenizer.json), which static models need"
        )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
