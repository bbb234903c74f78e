"""Losses beside sentence-transformers' own, where the formula is the same, and why they differ elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from emberge import Embeddings, Loss, Similarity
from emberge_train.losses.cosent import CoSENT
from emberge_train.losses.infonce import InfoNCE
from emberge_train.losses.matryoshka import Matryoshka
from emberge_train.losses.score_distillation import KLDistillation, MarginMSE
from torch import Tensor

from tests.support.losses import Through, as_columns, random_batch

# What a peer makes of its columns.
Peer = Callable[[list[Tensor]], Tensor]


def assert_agreement(loss: Loss, batch: Embeddings, peer: Peer) -> None:
    """Equal values to 1e-6 and equal gradients of every embedding."""
    ours = [column.clone().requires_grad_() for column in as_columns(batch)]
    theirs = [column.clone().requires_grad_() for column in as_columns(batch)]
    slots = batch.positive.shape[1]
    seen = dataclasses.replace(
        batch,
        anchor=ours[0],
        positive=torch.stack(ours[1 : 1 + slots], 1),
        negative=torch.stack(ours[1 + slots :], 1) if ours[1 + slots :] else batch.negative,
    )
    value, expected = loss(seen), peer(theirs)
    assert value.item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-12)
    value.backward()
    expected.backward()
    for own, other in zip(ours, theirs, strict=True):
        assert own.grad is not None
        assert other.grad is not None
        assert torch.allclose(own.grad, other.grad, rtol=1e-6, atol=1e-10)


def _stock(name: str, *arguments: Any, **options: Any) -> Any:
    import sentence_transformers.sentence_transformer.losses as stock

    return getattr(stock, name)(Through(), *arguments, **options)


def _peer(name: str, labels: Tensor | None = None, **options: Any) -> Peer:
    loss = _stock(name, **options)
    return lambda columns: loss.compute_loss_from_embeddings(columns, labels)  # type: ignore[no-any-return]


def _ranking(negatives: int, ours: Any = None, **theirs: Any) -> tuple[Loss, Embeddings, Peer]:
    peer = _peer("MultipleNegativesRankingLoss", scale=20.0, **theirs)
    return InfoNCE(temperature=0.05, **ours or {}), random_batch(negatives=negatives), peer


def _ordering(loss: Loss, rows: int) -> tuple[Loss, Embeddings, Peer]:
    scores = (torch.arange(rows, dtype=torch.float64) % 7 / 7).roll(3)  # with ties
    batch = random_batch(rows, negatives=0, positive_score=scores[:, None])
    return loss, batch, _peer(f"{type(loss).__name__}Loss", scores)


def _taught(loss: Loss, name: str, negatives: int, **options: Any) -> tuple[Loss, Embeddings, Peer]:
    batch = dataclasses.replace(random_batch(negatives=negatives), similarity=DOT)
    peer = _peer(name, batch.scores, **options)
    # The peer multiplies the divergence by the square of the temperature.
    factor = options.get("temperature", 1.0) ** 2
    return loss, batch, lambda columns: peer(columns) / factor


def _cut(weights: tuple[float, ...]) -> tuple[Loss, Embeddings, Peer]:
    inner = _stock("MultipleNegativesRankingLoss", scale=20.0)
    peer = _stock("MatryoshkaLoss", inner, (16, 8, 3), weights or None)
    inner.model = peer.model
    ours = Matryoshka(loss=(InfoNCE(temperature=0.05),), dims=(16, 8, 3), weights=weights)
    return (
        ours,
        random_batch(negatives=1),
        lambda columns: peer([{"sentence_embedding": column} for column in columns], None),
    )


DOT = Similarity(unit=False)
BOTH_WAYS = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
ANCHORS = {"directions": ("query_to_doc", "query_to_query")}
MARGIN, KL = MarginMSE(), KLDistillation(temperature=2.0)
AGREED: Mapping[str, Callable[[], tuple[Loss, Embeddings, Peer]]] = {
    **{f"infonce, {n}": partial(_ranking, n) for n in (0, 1, 3)},
    **{
        f"both ways, {n}": partial(_ranking, n, {"symmetric": True}, **BOTH_WAYS) for n in (0, 1, 3)
    },
    **{
        f"anchors, {n}": partial(_ranking, n, {"contrast_anchors": True}, **ANCHORS)
        for n in (0, 1, 3)
    },
    **{f"cosent, {rows} rows": partial(_ordering, CoSENT(), rows) for rows in (2, 50)},
    **{f"margin_mse, {n}": partial(_taught, MARGIN, "MarginMSELoss", n) for n in (1, 3)},
    **{f"kl, {n}": partial(_taught, KL, "DistillKLDivLoss", n, temperature=2.0) for n in (1, 4)},
    **{f"matryoshka {weights}": partial(_cut, weights) for weights in ((), (1.0, 0.5, 0.25))},
}


@pytest.mark.parametrize("name", AGREED)
def test_a_loss_is_that_of_sentence_transformers(name: str) -> None:
    assert_agreement(*AGREED[name]())


def test_blocks_of_a_large_batch_change_no_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import emberge.numerics.score_tables as vectors

    monkeypatch.setattr(vectors, "MOST_CELLS", 100)  # blocks of two or three rows
    assert_agreement(*_ranking(2))


def test_margin_mse_weighs_rows_alike_and_the_peer_pairs() -> None:
    """Where rows have different numbers of negatives: the mean over rows is what micro-batches add up to."""
    batch = dataclasses.replace(random_batch(2, negatives=2), similarity=DOT)
    valid = batch.valid.clone()
    valid[0, 2] = False
    loss = MarginMSE()
    both = loss(dataclasses.replace(batch, valid=valid))
    columns = as_columns(batch)
    peer = _stock("MarginMSELoss")
    first = peer.compute_loss_from_embeddings([c[:1] for c in columns[:3]], batch.scores[:1, :2])
    second = peer.compute_loss_from_embeddings([c[1:] for c in columns], batch.scores[1:])
    assert float(both) == pytest.approx(float(first + second) / 2, rel=1e-9)
    assert float(both) != pytest.approx(float(first + 2 * second) / 3, rel=1e-3)
