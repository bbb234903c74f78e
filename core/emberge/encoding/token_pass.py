"""Passes of losses over tokens: a batch's corrupted texts in chunks, each with its share of the loss.

Such a loss is a mean over the scored places of the whole batch, and their number is known before the first
chunk runs. So each chunk goes forward and backward once, weighed by its places, and nothing of it is kept:
neither its activations nor its logits are in memory together with another chunk's. A model with a loss term
of its own, which needs the counts of the whole batch, first runs all chunks to its hidden states, as the
gradient cache does for embeddings: their graphs are kept while memory lasts, and the others made again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from emberge.contracts import (
    AddsAuxiliary,
    Auxiliary,
    AuxiliaryMetrics,
    PacksTexts,
    PredictsTokens,
    TokenisedText,
    TokenLoss,
    Tokens,
)
from emberge.encoding.chunks import chunks, padded_tokens
from emberge.encoding.gradient_cache import EncodePlan, PassResult, device_of
from emberge.encoding.kept_graphs import KeptGraphs
from emberge.encoding.packing import packed_rows
from emberge.encoding.prefetch import Features, Feed, feed, to_device
from emberge.seeds import stable_seed

__all__ = ["UNSCORED", "CorruptedText", "corrupted", "predict_and_backward"]

UNSCORED = -100


@dataclass(frozen=True, slots=True, eq=False)
class CorruptedText:
    """Token ids of a text as a loss has changed them, and the labels [t] of its places."""

    text: TokenisedText
    labels: NDArray[np.int64]


def corrupted(
    encoder: PredictsTokens, text: TokenisedText, loss: TokenLoss, seed: int
) -> CorruptedText:
    """Return a text as the loss corrupts it, special tokens and the prompt's spared."""
    ids = np.asarray(text.ids, np.int64)
    spared = np.array(encoder.special(ids), bool)
    spared[: text.prompt_length] = True
    changed, labels = loss.corrupt(Tokens(ids, spared, encoder.mask_id, encoder.vocabulary), seed)
    return CorruptedText(TokenisedText(changed.tolist(), text.prompt_length), labels)


def predict_and_backward(
    encoder: PredictsTokens,
    texts: Sequence[CorruptedText],
    loss: TokenLoss,
    plan: EncodePlan,
    *,
    seed: int,
    weight: float = 1.0,
    auxiliary_weight: float = 1.0,
) -> PassResult:
    """Take a loss over all ranks' texts, and add this rank's share of its gradients, times `weight`.

    A loss term of the model's own is added, times `auxiliary_weight`. The loss of the result is this rank's
    share of both.
    """
    rows = _Rows.of(texts, plan.packing)
    lengths, scored = rows.lengths, rows.scored
    # Counts of places are far below the integers that float64 has.
    places = plan.ranks.total(torch.tensor(float(scored.sum()), dtype=torch.float64)).item()
    pieces = chunks(lengths, plan.token_budget)
    device = device_of(encoder)
    total = torch.zeros((), device=device)
    with feed(encoder, rows.texts, pieces, collate=_collate(encoder, plan)) as given:
        runner = _Chunks(encoder, given, pieces, lengths, plan, seed)
        first = runner.first() if isinstance(encoder, AddsAuxiliary) else _First()
        for index, piece in enumerate(pieces):
            features = given[index]
            kept = index in first.kept
            found = first.kept.pop(index) if kept else runner.run(index, features)
            states, auxiliary = found
            labels = _labels([label for i in piece for label in rows.labels[i]], features)
            with runner.drawing("head", index):
                value = loss(states, labels, encoder.logits)
            share = value * (weight * float(scored[piece].sum()) / max(places, 1.0))
            if auxiliary is not None and first.counts is not None:
                share = share + auxiliary.term(first.counts) * auxiliary_weight
            if share.requires_grad:
                share.backward()  # type: ignore[no-untyped-call]
            total = total + share.detach()
    padded = padded_tokens(lengths, pieces)
    return PassResult(
        total,
        int(lengths.sum()),
        padded,
        padded if first.tokens is None else first.tokens,
        first.counts,
        first.metrics,
    )


@dataclass(frozen=True, eq=False)
class _Rows:
    """Texts and labels of a batch by the row that they are computed in, with each row's tokens and places."""

    texts: Sequence[Sequence[TokenisedText]]
    labels: Sequence[Sequence[NDArray[np.int64]]]
    lengths: NDArray[np.int64]
    scored: NDArray[np.int64]

    @classmethod
    def of(cls, texts: Sequence[CorruptedText], packing: int | None) -> _Rows:
        """Return rows of one text each, or packed to a length."""
        lengths = np.fromiter((len(t.labels) for t in texts), np.int64, len(texts))
        scored = np.fromiter(
            (np.count_nonzero(t.labels != UNSCORED) for t in texts), np.int64, len(texts)
        )
        rows = np.arange(len(texts))[:, None] if packing is None else packed_rows(lengths, packing)
        return cls(
            [[texts[i].text for i in row] for row in rows],
            [[texts[i].labels for i in row] for row in rows],
            np.fromiter((lengths[row].sum() for row in rows), np.int64, len(rows)),
            np.fromiter((scored[row].sum() for row in rows), np.int64, len(rows)),
        )


def _collate(
    encoder: PredictsTokens, plan: EncodePlan
) -> Callable[[Sequence[Sequence[TokenisedText]]], Features]:
    """Return the function that makes features of a chunk's rows."""
    if plan.packing is None:
        return lambda rows: encoder.collate([text for (text,) in rows])
    assert isinstance(encoder, PacksTexts)
    return encoder.pack


_States = tuple[Tensor, Auxiliary | None]


@dataclass(frozen=True, eq=False)
class _First:
    """Result of the pass that counts: hidden states with their graphs by chunk, and counts of the batch."""

    kept: dict[int, _States] = field(default_factory=dict)
    tokens: int | None = None
    counts: Tensor | None = None
    metrics: AuxiliaryMetrics | None = None


@dataclass(frozen=True, eq=False)
class _Chunks:
    """A batch's chunks, and their passes to hidden states."""

    encoder: PredictsTokens
    given: Feed
    pieces: Sequence[NDArray[np.int64]]
    lengths: NDArray[np.int64]
    plan: EncodePlan
    seed: int

    def first(self) -> _First:
        """Return the counts of the batch on all ranks, and the states of the chunks that are kept."""
        room = KeptGraphs(self.encoder.module, self.plan.kept_tokens, self.plan.kept_bytes)
        kept: dict[int, _States] = {}
        tokens = 0
        counts: list[Tensor] = []
        metrics: AuxiliaryMetrics | None = None
        for index, piece in enumerate(self.pieces):
            size = len(piece) * int(self.lengths[piece].max())
            keep = room.has_room(size)
            with room.passing(size, keep):
                found = self.run(index, self.given[index])
            if keep:
                kept[index] = found
                tokens += size
            if found[1] is not None:
                counts.append(found[1].counts.detach())
                metrics = found[1].metrics
        return _First(kept, tokens, self._total(counts), metrics)

    def _total(self, counts: Sequence[Tensor]) -> Tensor | None:
        """Return the sum of all ranks' counts; one without texts has none to add."""
        size = self.plan.ranks.largest(len(counts[0]) if counts else 0)
        if not size:
            return None
        none = torch.zeros(size, dtype=torch.float64, device=device_of(self.encoder))
        return self.plan.ranks.total(torch.stack(list(counts)).sum(0) if counts else none)

    def run(self, index: int, features: Features) -> _States:
        """Return the hidden states of a chunk, and the model's own term if it has one."""
        with self.drawing(index):
            if isinstance(self.encoder, AddsAuxiliary):
                return self.encoder.states_and_auxiliary(features)
            return self.encoder.states(features), None

    @contextlib.contextmanager
    def drawing(self, *key: object) -> Iterator[None]:
        """Compute inside in the plan's precision, with random numbers of the key's own.

        A chunk that runs again, in this training or in one that goes on after a kill, draws the same.
        """
        torch.manual_seed(stable_seed(self.seed, *key))
        kind = device_of(self.encoder).type
        with torch.autocast(kind, dtype=self.plan.autocast, enabled=self.plan.autocast is not None):
            yield


def _labels(labels: Sequence[NDArray[np.int64]], features: Mapping[str, Tensor]) -> Tensor:
    """Return labels at the places of a batch of features [b, t], UNSCORED where that is padded."""
    ids = features["input_ids"]
    flat = to_device(torch.from_numpy(np.concatenate(labels)), ids.device)
    mask = features.get("attention_mask")
    if mask is None:
        return flat.view(ids.shape)
    placed = torch.full_like(ids, UNSCORED)
    placed[mask.bool()] = flat
    return placed
