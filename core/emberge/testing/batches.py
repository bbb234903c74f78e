"""A small encoder, and random batches with every column that a loss may read, for checks of laws."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from emberge.contracts import (
    COSINE,
    Embedded,
    EmbeddingKind,
    Embeddings,
    Loss,
    Similarity,
    TokenisedText,
)

_TOKENS_PER_TEXT = 3
WIDTH = 8


@dataclasses.dataclass(frozen=True)
class _TokenProducts(Similarity):
    """Plain comparison of token vectors [t, d]: the sum of the products of all pairs of tokens."""

    kind: EmbeddingKind = "token_vectors"

    def own_scores(self, left: Tensor, right: Tensor) -> Tensor:
        return super().own_scores(left.sum(-2), right.sum(-2))

    def table(self, left: Tensor, right: Tensor) -> Tensor:
        return super().table(left.sum(-2), right.sum(-2))

    def log_sums(
        self,
        left: Tensor,
        right: Tensor,
        excluded: Callable[[slice], Tensor | None],
        scale: float = 1.0,
    ) -> Tensor:
        return super().log_sums(left.sum(-2), right.sum(-2), excluded, scale)


_SIMILARITIES: Mapping[EmbeddingKind, Similarity] = {
    "vector": COSINE,
    "sparse": Similarity("sparse", unit=False),
    "token_vectors": _TokenProducts(),
    "pair_score": Similarity("pair_score", unit=False),
}


def find_similarity(kind: EmbeddingKind) -> Similarity:
    """Return the comparison of embeddings of a kind, as encoders have it by default."""
    return _SIMILARITIES[kind]


def find_width(kind: EmbeddingKind) -> int:
    """Return the size of an example's vectors of a kind; a score is one number."""
    return 1 if kind == "pair_score" else WIDTH


class LetterEncoder(nn.Module):
    """Encoder with a vector for each letter; a text's embedding is the mean of its letters' vectors.

    With the kind `token_vectors` it is these vectors themselves; with `pair_score` it is one number.
    """

    tokenizer_fingerprint = "letters"
    reads_queries_apart = False
    prompts: Mapping[str, str] = {}

    def __init__(self, kind: EmbeddingKind = "vector") -> None:
        super().__init__()
        self.similarity = find_similarity(kind)
        self.dimension = find_width(kind)
        generator = torch.Generator().manual_seed(1)
        self.letter_vectors = nn.Embedding(64, self.dimension, padding_idx=0)
        with torch.no_grad():
            first = torch.randn(63, self.dimension, generator=generator)  # 0 is padding
            self.letter_vectors.weight[1:] = first
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
        states = self.letter_vectors(ids)
        # Dropout of whole embeddings' entries: its pattern must not depend on the padding.
        if self.similarity.kind == "token_vectors":
            pooled = states * self.dropout(torch.ones_like(states[:, :1]))
        else:
            pooled = self.dropout(states.sum(1) / (ids > 0).sum(1, keepdim=True))
        return Embedded(pooled, {layer: self.layer(pooled, layer) for layer in layers})

    def states(self, features: Mapping[str, Tensor]) -> Tensor:
        """Return the vectors of a batch's letters."""
        return self.letter_vectors(features["input_ids"])  # type: ignore[no-any-return]

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
        torch.save(self.state_dict(), folder / "letters.pt")


def draw_embeddings(
    rows: int = 6,
    *,
    positives: int = 2,
    negatives: int = 2,
    in_batch: bool = True,
    seed: int = 0,
    kind: EmbeddingKind = "vector",
) -> Embeddings:
    """Return a random batch with scores, labels and two padded places, but without a guide's embeddings."""
    generator = torch.Generator().manual_seed(seed)
    column_count = 1 + positives + negatives
    shape = (_TOKENS_PER_TEXT,) if kind == "token_vectors" else ()
    vectors = torch.randn(rows, column_count, *shape, find_width(kind), generator=generator)
    if kind == "token_vectors":
        vectors[::2, ::2, -1] = 0  # shorter texts
    valid = torch.ones(rows, positives + negatives, dtype=torch.bool)
    if positives > 1:
        valid[0, positives - 1] = False
    if negatives > 1:
        valid[min(1, rows - 1), -1] = False
    scores = torch.rand(rows, positives + negatives, generator=generator)
    return Embeddings(
        anchor=vectors[:, 0],
        positive=vectors[:, 1 : 1 + positives],
        negative=vectors[:, 1 + positives :],
        valid=valid,
        text_id=torch.arange(rows * column_count).view(rows, column_count),
        positive_score=scores[:, :positives],
        negative_score=scores[:, positives:],
        label=torch.arange(rows) // 2,
        in_batch=in_batch,
        similarity=find_similarity(kind),
    )


def with_layers_and_guide(loss: Loss, batch: Embeddings) -> Embeddings:
    """Return the batch with the layers that a loss asks for, and a guide."""
    layers = {
        layer: change_embeddings(batch, partial(LetterEncoder.layer, layer=layer))
        for layer in loss.layers
    }
    width = batch.anchor.shape[-1]
    guide_vectors = torch.randn(width, width, generator=torch.Generator().manual_seed(9))
    has_tokens = batch.similarity.kind == "token_vectors"
    guided = change_embeddings(batch, lambda t: (t.sum(-2) if has_tokens else t) @ guide_vectors)
    guide = dataclasses.replace(guided, similarity=COSINE)
    return dataclasses.replace(batch, layers=layers, guide=guide)


def change_embeddings(batch: Embeddings, change: Callable[[Tensor], Tensor]) -> Embeddings:
    """Return the batch with all embeddings changed, including those of layers, but not a guide's."""
    return dataclasses.replace(
        batch,
        anchor=change(batch.anchor),
        positive=change(batch.positive),
        negative=change(batch.negative),
        layers={name: change_embeddings(inner, change) for name, inner in batch.layers.items()},
    )


def stack_columns(batch: Embeddings) -> Tensor:
    """Return the embeddings of anchor, positives and negatives of every row, [b, 1 + p + n, *e]."""
    return torch.cat([batch.anchor[:, None], batch.candidates], dim=1)


def replace_columns(
    batch: Embeddings, values: Tensor, layers: Mapping[float, Tensor]
) -> Embeddings:
    """Return the batch with embeddings `values` [b, 1 + p + n, *e], and `layers` as those of some layers."""
    positive_count = batch.positive.shape[1]
    inner = {
        name: replace_columns(layer, layers[name], {}) if name in layers else layer
        for name, layer in batch.layers.items()
    }
    return dataclasses.replace(
        batch,
        anchor=values[:, 0],
        positive=values[:, 1 : 1 + positive_count],
        negative=values[:, 1 + positive_count :],
        layers=inner,
    )


def add_padding(batch: Embeddings) -> Embeddings:
    """Return the batch with one more place for a positive and a negative, padded in all rows."""
    positive_count = batch.positive.shape[1]

    def widen(values: Tensor, fill_value: float = 0.0) -> Tensor:
        filler = torch.full_like(values[:, :1], fill_value)
        positives, negatives = values[:, :positive_count], values[:, positive_count:]
        return torch.cat([positives, filler, negatives, filler], dim=1)

    def widen_columns(values: Embeddings, **changes: Any) -> Embeddings:
        candidates = widen(values.candidates)
        return dataclasses.replace(
            values,
            positive=candidates[:, : positive_count + 1],
            negative=candidates[:, positive_count + 1 :],
            **changes,
        )

    facts: dict[str, Any] = {
        "valid": widen(batch.valid, False),
        "text_id": torch.cat([batch.text_id[:, :1], widen(batch.text_id[:, 1:], -1)], dim=1),
    }
    if batch.positive_score is not None or batch.negative_score is not None:
        scores = widen(batch.scores, torch.nan)
        facts["positive_score"] = scores[:, : positive_count + 1]
        facts["negative_score"] = scores[:, positive_count + 1 :]
    layers = {layer: widen_columns(one, **facts) for layer, one in batch.layers.items()}
    guide = batch.guide and widen_columns(batch.guide, **facts)
    return widen_columns(batch, layers=layers, guide=guide, **facts)
