"""Vectors of single tokens: a teacher's embeddings of them, weighted by how rare the tokens are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from emberge import TokenisedText
from numpy.typing import NDArray

from emberge_smaller.corpus_tokens import count_rows, count_tokens

if TYPE_CHECKING:
    from emberge.encoding import TextEmbedder

# Tokens of vocabularies that no text has: `[unused12]` of BERT, `<unused12>` of Gemma.
_UNUSED_TOKEN = re.compile(r"\[unused\d+\]|<unused\d+>")
# A text whose tokens any tokenizer knows; the tokens around them are the special ones.
_PROBE = "a"
# Coefficient a of SIF: tokens with a probability far above it hardly count.
SIF = 1e-3


class StaticTable(NamedTuple):
    """The vectors of a static model, float32 [ids, d], and the number of texts whose tokens were counted."""

    vectors: NDArray[np.float32]
    counted_texts: int


def build_static_table(
    tokenizer: Any, embedder: TextEmbedder, texts: Iterable[str] | None
) -> StaticTable:
    """Return the table of a teacher's tokens, weighted by their frequency in `texts` or by Zipf's law.

    Raises:
        CheckpointError: if embeddings are not finite.
    """
    size, counted_texts = count_rows(tokenizer), 0
    token_by_id = list_tokens_of_texts(tokenizer)
    ids = list(token_by_id)
    if texts is None:
        probabilities = guess_probabilities([*token_by_id.values()])
    else:
        counts, counted_texts = count_tokens(tokenizer, texts, size)
        probabilities = count_probabilities(counts[ids])
    vectors = weigh_tokens(embed_tokens(embedder, ids), probabilities)
    return StaticTable(build_table(vectors, ids, size), counted_texts)


def list_tokens_of_texts(tokenizer: Any) -> dict[int, str]:
    """Return the tokens that texts can have by their ids, in ascending order: no special or unused ones."""
    added = tokenizer.get_added_tokens_decoder()
    special = {token_id for token_id, token in added.items() if token.special}
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    return {
        token_id: token
        for token, token_id in sorted(vocabulary.items(), key=lambda item: item[1])
        if token_id not in special and not _UNUSED_TOKEN.fullmatch(token)
    }


def embed_tokens(embedder: TextEmbedder, ids: Iterable[int]) -> NDArray[np.float32]:
    """Return the teacher's embedding of each token, float32 [n, d].

    Each token is embedded as a text of its own, between the special tokens that the teacher's tokenizer puts
    around a text (model2vec: Tulkens and van Dongen, 2024).

    Raises:
        CheckpointError: if embeddings are not finite.
    """
    (probe,) = embedder.encoder.tokenise([_PROBE], prompt="", max_length=None)
    (is_of_text,) = embedder.mask_text_tokens([probe])
    of_text = np.flatnonzero(is_of_text)
    before = list(probe.ids[: of_text[0]]) if len(of_text) else list(probe.ids)
    after = list(probe.ids[of_text[-1] + 1 :]) if len(of_text) else []
    return embedder.embed_tokens([TokenisedText([*before, token, *after]) for token in ids])


def count_probabilities(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return each token's probability, float64 [n], which sums to 1; each count has one added to it."""
    return np.asarray((counts + 1.0) / (counts + 1.0).sum(), np.float64)


def guess_probabilities(tokens: Sequence[str]) -> NDArray[np.float64]:
    """Return each token's probability without a text, float64 [n], which sums to 1.

    It is in inverse proportion to the token's rank (Zipf, 1949), as vocabularies are roughly sorted by
    frequency. Single characters have ranks of their own: many vocabularies begin with an alphabet in the
    order of Unicode, and the most frequent word comes after it.
    """
    is_character = np.array([len(token) == 1 for token in tokens])
    ranks = np.where(is_character, np.cumsum(is_character), np.cumsum(~is_character))
    return np.asarray(1.0 / ranks / (1.0 / ranks).sum(), np.float64)


def weigh_tokens(
    vectors: NDArray[np.float32], probabilities: NDArray[np.float64]
) -> NDArray[np.float32]:
    """Return vectors of tokens whose mean over a text is its static embedding, float32 [n, d].

    The mean of all tokens' vectors, by their probabilities, is taken off. Each vector is multiplied by
    a / (a + p), with its probability p (SIF: Arora et al., 2017, openreview SyK00v5xx).
    """
    rows = np.array(vectors, np.float64)
    rows -= probabilities @ rows
    rows *= (SIF / (SIF + probabilities))[:, None]
    return rows.astype(np.float32)


def build_table(vectors: NDArray[np.float32], ids: Sequence[int], size: int) -> NDArray[np.float32]:
    """Return a table with the vector of each id, float32 [size, d]; rows of other ids are zeros."""
    table = np.zeros((size, vectors.shape[1]), np.float32)
    table[np.asarray(ids, np.int64)] = vectors
    return table
