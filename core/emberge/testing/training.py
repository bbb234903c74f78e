"""Laws of training: what any loss, sampler and backbone can be held to. A broken one is an AssertionError."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from emberge.contracts.backbone import Backbone, Embedded, TokenisedText
from emberge.contracts.dataset import DatasetInfo
from emberge.contracts.loss import Embeddings, Loss
from emberge.contracts.sampler import Batch, Pool, Sampler
from emberge.training.encode import Encoded, EncodePlan, TextEmbedder, encode_and_backward

__all__ = ["check_backbone", "check_loss", "check_sampler", "example_embeddings"]

TEXTS = ("open a file", "sort a list of numbers by value", "the weather", "a", "Find the Last Row!")


def example_embeddings(
    rows: int = 6,
    *,
    positives: int = 2,
    negatives: int = 2,
    in_batch: bool = True,
    seed: int = 0,
) -> Embeddings:
    """A random batch with everything a loss may read: scores, labels, and two places that are filling."""
    made = torch.Generator().manual_seed(seed)
    width = 1 + positives + negatives
    vectors = torch.randn(rows, width, 8, generator=made)
    valid = torch.ones(rows, positives + negatives, dtype=torch.bool)
    if positives > 1:
        valid[0, positives - 1] = False
    if negatives > 1:
        valid[1, -1] = False
    scores = torch.rand(rows, positives + negatives, generator=made)
    return Embeddings(
        anchor=vectors[:, 0],
        positive=vectors[:, 1 : 1 + positives],
        negative=vectors[:, 1 + positives :],
        valid=valid,
        text_id=torch.arange(rows * width).view(rows, width),
        positive_score=scores[:, :positives],
        negative_score=scores[:, positives:],
        label=torch.arange(rows) // 2,
        in_batch=in_batch,
    )


def check_loss(loss: Loss) -> None:
    """Hold a loss to its laws, with other rows as negatives and without.

    It gives a finite scalar with finite gradients; the order of rows does not matter; what stands in places
    that `valid` masks does not matter; and gradients through a cache, in chunks of any size, equal those of
    one pass.
    """
    for in_batch in (True, False):
        batch = example_embeddings(in_batch=in_batch)
        if loss.layers:
            batch = dataclasses.replace(batch, layers=dict.fromkeys(loss.layers, batch))
        _check_gradients(loss, batch)
        _check_row_order(loss, batch)
        _check_filling(loss, batch)
        _check_cache(loss, batch)


def _value(loss: Loss, batch: Embeddings) -> Tensor:
    return loss(batch, dict(loss.parameters()))


def _check_gradients(loss: Loss, batch: Embeddings) -> None:
    parts = [t.clone().requires_grad_() for t in (batch.anchor, batch.positive, batch.negative)]
    own = dataclasses.replace(batch, anchor=parts[0], positive=parts[1], negative=parts[2])
    if loss.layers:
        own = dataclasses.replace(own, layers=dict.fromkeys(loss.layers, own))
    value = _value(loss, own)
    assert value.ndim == 0, f"the loss must be a scalar, not of shape {list(value.shape)}"
    assert torch.isfinite(value), f"the loss is {float(value)} on a plain batch"
    grads = torch.autograd.grad(value, parts, allow_unused=True)
    assert grads[0] is not None, "no gradient reaches the anchors"
    for grad, name in zip(grads, ("anchors", "positives", "negatives"), strict=True):
        assert grad is None or torch.isfinite(grad).all(), (
            f"the gradient of the {name} is not finite"
        )


def _permuted(batch: Embeddings, order: Tensor) -> Embeddings:
    fields = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
    moved: dict[str, Any] = {n: v[order] for n, v in fields.items() if isinstance(v, Tensor)}
    layers = {name: _permuted(inner, order) for name, inner in batch.layers.items()}
    return dataclasses.replace(batch, **moved, layers=layers)


def _check_row_order(loss: Loss, batch: Embeddings) -> None:
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    first, second = _value(loss, batch), _value(loss, _permuted(batch, order))
    assert torch.allclose(first, second, rtol=1e-5), (
        f"the order of rows changes the loss: {float(first)} and {float(second)}"
    )


def _check_filling(loss: Loss, batch: Embeddings) -> None:
    slots = batch.positive.shape[1]
    positive, negative = batch.positive.clone(), batch.negative.clone()
    positive[~batch.valid[:, :slots]] = 7.0
    negative[~batch.valid[:, slots:]] = -7.0
    other = dataclasses.replace(batch, positive=positive, negative=negative)
    if loss.layers:
        other = dataclasses.replace(other, layers=dict.fromkeys(loss.layers, other))
    first, second = _value(loss, batch), _value(loss, other)
    assert torch.allclose(first, second, rtol=1e-5), "places that `valid` masks change the loss"


class _Words(nn.Module):
    """An encoder small enough for laws: the mean of learned word vectors, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.words = nn.Embedding(64, 8, padding_idx=0)
        with torch.no_grad():
            self.words.weight[1:] = torch.randn(63, 8, generator=generator)  # 0 is padding
        self.dropout = nn.Dropout(0.2)

    @property
    def module(self) -> nn.Module:
        return self

    dimension = 8
    tokenizer_fingerprint = "words"
    prompts: Mapping[str, str] = {}

    def tokenise(
        self, texts: Sequence[str], *, prompt: str, max_length: int | None
    ) -> list[TokenisedText]:
        return [TokenisedText([1 + ord(c) % 63 for c in prompt + t][:max_length]) for t in texts]

    def collate(self, texts: Sequence[TokenisedText]) -> Mapping[str, Tensor]:
        longest = max(len(t.ids) for t in texts)
        return {"input_ids": torch.tensor([[*t.ids] + [0] * (longest - len(t.ids)) for t in texts])}

    def forward(self, features: Mapping[str, Tensor], layers: Sequence[float] = ()) -> Embedded:
        ids = features["input_ids"]
        states = self.words(ids)
        # Dropout of whole embeddings' entries: its pattern must not depend on the padding.
        count = (ids > 0).sum(1, keepdim=True)
        pooled = self.dropout(states.sum(1) / count)
        return Embedded(pooled, dict.fromkeys(layers, pooled))

    def save(self, folder: Path) -> None:
        torch.save(self.state_dict(), folder / "words.pt")


def _check_cache(loss: Loss, batch: Embeddings) -> None:
    width = 1 + batch.valid.shape[1]
    texts = [
        TokenisedText([1 + (i * 7 + j * 3) % 63 for j in range(1 + i % 5)])
        for i in range(len(batch.anchor) * width)
    ]

    def gradient(plan: EncodePlan) -> Tensor:
        encoder = _Words().train(plan.dropout)
        slots = batch.positive.shape[1]

        def seen(values: Tensor) -> Embeddings:
            rows = values.view(len(batch.anchor), width, -1)
            return dataclasses.replace(
                batch,
                anchor=rows[:, 0],
                positive=rows[:, 1 : 1 + slots],
                negative=rows[:, 1 + slots :],
            )

        def objective(encoded: Encoded) -> Tensor:
            layers = {name: seen(values) for name, values in encoded.layers.items()}
            return _value(loss, dataclasses.replace(seen(encoded.embeddings), layers=layers))

        encode_and_backward(encoder, texts, objective, plan, seed=3, layers=loss.layers)
        grad = encoder.words.weight.grad
        assert grad is not None, "no gradient reaches the encoder"
        return grad

    for dropout in (False, True):
        whole = gradient(EncodePlan(10 if dropout else 10**6, None, dropout=dropout))
        cached = gradient(EncodePlan(10, 0, dropout=dropout))
        scale = whole.abs().max()
        assert (whole - cached).abs().max() <= 1e-5 * scale, (
            "the cached gradient differs from the plain one"
        )


def check_sampler(sampler: Sampler, pool: Pool | None = None, *, repeats: bool = False) -> None:
    """Hold a sampler to its laws.

    The same seed gives the same rows, and another seed others; every row is of the pool; a batch holds rows
    of one dataset, none twice; and unless `repeats` no row comes twice in an epoch.
    """
    pool = pool or {
        DatasetInfo("first", "retrieval", 101): range(101),
        DatasetInfo("second", "sts", 64): range(64),
        DatasetInfo("third", "retrieval", 230): range(230),
    }
    chosen, again = (_rows(sampler.select(pool, 7)) for _ in range(2))
    assert chosen == again, "select with one seed chose different rows"
    known = _rows(pool)
    for name, rows in chosen.items():
        assert set(rows) <= set(known[name]), f"select made up rows of '{name}'"
        assert repeats or len(set(rows)) == len(rows), f"select took a row of '{name}' twice"
    if type(sampler).batches is Sampler.batches:
        assert _rows(sampler.select(pool, 8)) != chosen or chosen == known, (
            "select ignores its seed"
        )
        return
    first, second, other = (list(sampler.batches(pool, seed)) for seed in (7, 7, 8))
    assert _plain(first) == _plain(second), "batches with one seed differ"
    assert _plain(first) != _plain(other), "batches ignore their seed"
    _check_batches(first, known, repeats)


def _check_batches(
    batches: Sequence[Batch], known: Mapping[str, Sequence[int]], repeats: bool
) -> None:
    seen: set[tuple[str, int]] = set()
    for batch in batches:
        names = {part.dataset for part in batch.parts}
        assert len(names) == 1, f"a batch mixes datasets: {sorted(names)}"
        rows = [(part.dataset, int(row)) for part in batch.parts for row in part.rows]
        assert rows, "a batch is empty"
        assert len(set(rows)) == len(rows), "a row stands twice in a batch"
        assert repeats or not seen & set(rows), "a row stands in two batches of an epoch"
        for name, row in rows:
            assert row in known[name], f"row {row} of '{name}' is not in the pool"
        seen |= set(rows)


def _rows(pool: Pool) -> dict[str, list[int]]:
    return {info.name: [int(row) for row in rows] for info, rows in pool.items()}


def _plain(batches: Sequence[Batch]) -> list[tuple[str, tuple[int, ...]]]:
    return [(p.dataset, tuple(int(r) for r in p.rows)) for b in batches for p in b.parts]


def check_backbone(backbone: Backbone, checkpoint: Path) -> None:
    """Hold a backbone to its laws on a checkpoint.

    `check` finds nothing wrong; a text's embedding depends on neither its place nor its neighbours; gradients
    are finite; and the saved folder, loaded by plain SentenceTransformers, gives the same embeddings to 1e-5.
    """
    from sentence_transformers import SentenceTransformer

    assert not backbone.check(checkpoint), f"check complains: {backbone.check(checkpoint)}"
    encoder = backbone.load(checkpoint, device="cpu", dtype="float32")
    together = TextEmbedder(encoder).embed(TEXTS)
    assert together.shape == (len(TEXTS), encoder.dimension), "dimension is not that of embeddings"
    turned = TextEmbedder(encoder, token_budget=8).embed(TEXTS[::-1])[::-1]
    assert np.abs(together - turned).max() <= 1e-5, "an embedding depends on its neighbours"
    tokens = encoder.tokenise(TEXTS, prompt="", max_length=None)
    encode_and_backward(
        encoder, tokens, lambda e: e.embeddings[:, 0].sum(), EncodePlan(64, dropout=False), seed=0
    )
    grads = [p.grad for p in encoder.module.parameters() if p.grad is not None]
    assert grads, "no gradient reaches the weights"
    assert all(torch.isfinite(g).all() for g in grads), "a gradient is not finite"
    with tempfile.TemporaryDirectory() as folder:
        encoder.save(Path(folder))
        plain = SentenceTransformer(folder, device="cpu", local_files_only=True)
        theirs = plain.encode(list(TEXTS), show_progress_bar=False)
    assert np.abs(together - theirs).max() <= 1e-5, (
        "the saved folder gives other embeddings through SentenceTransformer"
    )
