"""Encoder small enough for checks of laws: the mean of letters' learned vectors, with dropout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from emberge.contracts import COSINE, Embedded, EmbeddingKind, MaxSim, Similarity, TokenisedText

WIDTH = 8
_SIMILARITIES: Mapping[EmbeddingKind, Similarity] = {
    "vector": COSINE,
    "sparse": Similarity("sparse", unit=False),
    "token_vectors": MaxSim(),
    "pair_score": Similarity("pair_score", unit=False),
}


def similarity_of(kind: EmbeddingKind) -> Similarity:
    """Return the comparison of embeddings of a kind, as encoders have it by default."""
    return _SIMILARITIES[kind]


def width_of(kind: EmbeddingKind) -> int:
    """Return the size of an example's vectors of a kind; a score is one number."""
    return 1 if kind == "pair_score" else WIDTH


class LetterEncoder(nn.Module):
    """Encoder with a vector for each letter; a text's embedding is the mean of its letters' vectors.

    With the kind `token_vectors` it is these vectors themselves; with `pair_score` it is one number.
    """

    tokenizer_fingerprint = "words"
    reads_queries_apart = False
    prompts: Mapping[str, str] = {}

    def __init__(self, kind: EmbeddingKind = "vector") -> None:
        super().__init__()
        self.similarity = similarity_of(kind)
        self.dimension = width_of(kind)
        generator = torch.Generator().manual_seed(1)
        self.words = nn.Embedding(64, self.dimension, padding_idx=0)
        with torch.no_grad():
            first = torch.randn(63, self.dimension, generator=generator)  # 0 is padding
            self.words.weight[1:] = first
        self.dropout = nn.Dropout(0.2)

    @property
    def module(self) -> nn.Module:
        """Module with all weights."""
        return self

    def tokenise(
        self, texts: Sequence[str], *, prompt: str, max_length: int | None, queries: bool = False
    ) -> list[TokenisedText]:
        """Return, for each text, the number of every letter."""
        return [TokenisedText([1 + ord(c) % 63 for c in prompt + t][:max_length]) for t in texts]

    def collate(self, texts: Sequence[TokenisedText]) -> Mapping[str, Tensor]:
        """Return ids with zeros at the end of shorter texts."""
        longest = max(len(t.ids) for t in texts)
        return {"input_ids": torch.tensor([[*t.ids] + [0] * (longest - len(t.ids)) for t in texts])}

    def forward(self, features: Mapping[str, Tensor], layers: Sequence[float] = ()) -> Embedded:
        """Return the mean of each text's vectors, and the result of `layer` for each layer."""
        ids = features["input_ids"]
        states = self.words(ids)
        # Dropout of whole embeddings' entries: its pattern must not depend on the padding.
        if self.similarity.kind == "token_vectors":
            pooled = states * self.dropout(torch.ones_like(states[:, :1]))
        else:
            pooled = self.dropout(states.sum(1) / (ids > 0).sum(1, keepdim=True))
        return Embedded(pooled, {layer: self.layer(pooled, layer) for layer in layers})

    def states(self, features: Mapping[str, Tensor]) -> Tensor:
        """Return the vectors of a batch's letters."""
        return self.words(features["input_ids"])  # type: ignore[no-any-return]

    def stored_names(self) -> Mapping[str, str]:
        """Return the names of the weights, which are stored under unchanged names."""
        return {name: name for name, _ in self.named_parameters()}

    @staticmethod
    def layer(pooled: Tensor, layer: float) -> Tensor:
        """Return the embeddings of an intermediate layer; zero vectors, as of padding, stay zero."""
        is_zero = (pooled == 0).all(-1, keepdim=True)
        return (pooled.roll(1, dims=-1) + layer).masked_fill(is_zero, 0.0)

    def save(self, folder: Path) -> None:
        """Write the vectors."""
        torch.save(self.state_dict(), folder / "words.pt")
