"""Scores of queries with documents, for every kind of embedding, while the documents are embedded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from emberge.encoding.embedder import TextEmbedder

# Scores of a block of documents that are in memory at once: 64 MB of float32.
_SCORES = 1 << 24
_FEWEST, _MOST = 64, 4096
# Products of tokens that are in memory at once: 16 MB of float32.
_PRODUCTS = 1 << 22


@dataclass(frozen=True, eq=False)
class EmbeddedQueries:
    """Embeddings of queries in the form that is compared, in groups of texts of similar length.

    A group has the places of its queries, and embeddings [n, *e]. Sparse vectors are a sparse matrix.
    """

    count: int
    groups: Sequence[tuple[NDArray[np.int64], Tensor]]

    @property
    def documents_at_once(self) -> int:
        """Number of documents whose scores with all queries fit into memory together."""
        return max(_FEWEST, min(_MOST, _SCORES // max(1, self.count)))


class TextSearch:
    """Search by an encoder of any kind of embedding, compared by the encoder's own similarity.

    Documents are embedded chunk by chunk, and only their scores are kept: neither the vectors of all tokens
    of a corpus are in memory at once, nor dense rows of sparse vectors.
    """

    def __init__(self, embedder: TextEmbedder, *, max_length: int | None = None) -> None:
        self.embedder = embedder
        self._max_length = max_length

    def embed_queries(self, texts: Sequence[str], *, prompt: str = "") -> EmbeddedQueries:
        """Return the embeddings of queries, each with `prompt` before it."""
        similarity = self.embedder.encoder.similarity
        tokens = self.embedder.tokenise(
            texts, prompt=prompt, max_length=self._max_length, queries=True
        )
        groups = []
        for places, rows in self.embedder.embed_chunks(tokens):
            prepared = similarity.prepared(rows)
            is_sparse = similarity.kind == "sparse"
            groups.append((places, prepared.to_sparse() if is_sparse else prepared))
        return EmbeddedQueries(len(texts), groups)

    def score(
        self, queries: EmbeddedQueries, documents: Sequence[str], *, prompt: str = ""
    ) -> NDArray[np.float32]:
        """Return the scores [queries, documents], each document with `prompt` before it."""
        similarity = self.embedder.encoder.similarity
        tokens = self.embedder.tokenise(documents, prompt=prompt, max_length=self._max_length)
        scores = np.empty((queries.count, len(documents)), np.float32)
        for columns, rows in self.embedder.embed_chunks(tokens):
            prepared = similarity.prepared(rows)
            for places, group in queries.groups:
                # Of each query's tokens with each document's, only so many products are made at once.
                cells_a_query = prepared.shape[:-1].numel() * group.shape[1:-1].numel()
                step = len(places) if group.is_sparse else max(1, _PRODUCTS // cells_a_query)
                for start in range(0, len(places), step):
                    part = group if step >= len(places) else group[start : start + step]
                    table = similarity.table(part, prepared).cpu().numpy()
                    scores[np.ix_(places[start : start + step], columns)] = table
        return scores
