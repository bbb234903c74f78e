"""Losses beside sentence-transformers' own, where the formula is the same, and why they differ elsewhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from emberge import Embeddings, Loss
from emberge_train.losses.angle import AnglE
from emberge_train.losses.cosent import CoSENT
from emberge_train.losses.infonce import InfoNCE
from emberge_train.losses.kl_distillation import KLDistillation
from emberge_train.losses.margin_mse import MarginMSE
from emberge_train.losses.matryoshka import Matryoshka
from torch import Tensor

from tests.support import tiny
from tests.support.losses import GUIDE, Through, as_columns, random_batch

# What a peer makes of its columns.
Peer = Callable[[list[Tensor]], Tensor]


def _agree(loss: Loss, batch: Embeddings, peer: Peer) -> None:
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
    value, expected = loss(seen, loss.parameters()), peer(theirs)
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


def _odd() -> tuple[Loss, Embeddings, Peer]:
    """AnglE pads embeddings of odd size."""
    batch = random_batch(9, size=7, negatives=0)
    assert batch.positive_score is not None
    return AnglE(), batch, _peer("AnglELoss", batch.positive_score[:, 0])


def _taught(loss: Loss, name: str, negatives: int, **options: Any) -> tuple[Loss, Embeddings, Peer]:
    batch = random_batch(negatives=negatives)
    return loss, batch, _peer(name, batch.scores, **options)


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


BOTH_WAYS = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
ANCHORS = {"directions": ("query_to_doc", "query_to_query")}
MARGIN, KL = (
    MarginMSE(similarity="dot"),
    KLDistillation(temperature=2.0, similarity="dot", rescale=True),
)
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
    **{f"angle, {rows} rows": partial(_ordering, AnglE(), rows) for rows in (2, 50)},
    "angle of an odd size": _odd,
    # Texts of triplets count one and zero.
    "angle of triplets": lambda: (
        AnglE(unscored=True),
        random_batch(positive_score=None, negative_score=None),
        _peer("AnglELoss"),
    ),
    **{f"margin_mse, {n}": partial(_taught, MARGIN, "MarginMSELoss", n) for n in (1, 3)},
    **{f"kl, {n}": partial(_taught, KL, "DistillKLDivLoss", n, temperature=2.0) for n in (1, 4)},
    **{f"matryoshka {weights}": partial(_cut, weights) for weights in ((), (1.0, 0.5, 0.25))},
}


@pytest.mark.parametrize("name", AGREED)
def test_a_loss_is_the_peer_s(name: str) -> None:
    _agree(*AGREED[name]())


def test_blocks_of_a_large_batch_are_the_peer_s_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    import emberge.numerics.score_tables as vectors

    monkeypatch.setattr(vectors, "CELLS", 100)  # blocks of two or three rows
    _agree(*_ranking(2))


def test_margin_mse_weighs_rows_alike_and_the_peer_pairs() -> None:
    """Where rows have different numbers of negatives: the mean over rows is what micro-batches add up to."""
    batch = random_batch(2, negatives=2)
    valid = batch.valid.clone()
    valid[0, 2] = False
    loss = MarginMSE(similarity="dot")
    both = loss(dataclasses.replace(batch, valid=valid), {})
    columns = as_columns(batch)
    peer = _stock("MarginMSELoss")
    first = peer.compute_loss_from_embeddings([c[:1] for c in columns[:3]], batch.scores[:1, :2])
    second = peer.compute_loss_from_embeddings([c[1:] for c in columns], batch.scores[1:])
    assert float(both) == pytest.approx(float(first + second) / 2, rel=1e-9)
    assert float(both) != pytest.approx(float(first + 2 * second) / 3, rel=1e-3)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    tiny.write_tokenizer(folder)
    return AutoTokenizer.from_pretrained(folder)


class _Told(Through):
    """Embeddings that are given, under another name for the guide."""

    def __init__(self, key: str, tokenizer: Any) -> None:
        super().__init__()
        self.key, self.tokenizer, self.max_seq_length = key, tokenizer, 64

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": features[self.key]}


@pytest.mark.parametrize("negatives", [0, 1])
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("margin", [0.0, 0.1])
def test_a_guided_infonce_is_gist(
    tokenizer: Any, margin: float, plain: bool, negatives: int
) -> None:
    from sentence_transformers.sentence_transformer.losses import GISTEmbedLoss

    batch = random_batch(20, negatives=negatives)
    # The guide holds positives for near, and some other texts for nearer.
    torch.manual_seed(1)
    seen = torch.randn(20, 1, 6, dtype=torch.float64)
    near = seen + 1.2 * torch.randn(20, 2 + negatives, 6, dtype=torch.float64)
    guide = Embeddings(near[:, 0], near[:, 1:2], near[:, 2:], batch.valid, batch.text_id)
    peer = GISTEmbedLoss(
        _Told("sentence_embedding", tokenizer),
        _Told("guide", tokenizer),
        temperature=0.05,
        margin_strategy="absolute",
        margin=margin,
        contrast_anchors=not plain,
        contrast_positives=not plain,
    )
    loss = InfoNCE(
        temperature=0.05,
        guide=GUIDE,
        guide_margin=margin,
        contrast_anchors=not plain,
        contrast_positives=not plain,
    )
    guides = near.unbind(1)

    def by_peer(columns: list[Tensor]) -> Tensor:
        rows = zip(columns, guides, strict=True)
        return peer([{"sentence_embedding": c, "guide": g} for c, g in rows], torch.zeros(1))

    seen_batch = dataclasses.replace(batch, guide=guide)
    _agree(loss, seen_batch, by_peer)
    unguided = dataclasses.replace(loss, guide=None)
    assert float(unguided(seen_batch, {})) > float(loss(seen_batch, {})) + 1e-3


def test_a_guide_takes_equal_texts_with_it_and_gist_keeps_them(tokenizer: Any) -> None:
    """The guide cannot tell a text from itself, so whether GIST masks it is a matter of rounding."""
    batch = random_batch(4, negatives=0)
    positive = batch.positive.clone()
    positive[1] = positive[0]
    ids = batch.text_id.clone()
    ids[1, 1] = ids[0, 1]
    twins = dataclasses.replace(batch, positive=positive, text_id=ids, guide=None)
    twins = dataclasses.replace(twins, guide=dataclasses.replace(twins))
    guided = InfoNCE(temperature=0.5, guide=GUIDE)
    strangers = dataclasses.replace(twins, text_id=batch.text_id)
    assert float(guided(twins, {})) < float(guided(strangers, {}))


def test_zero_vectors_give_the_peer_a_gradient_of_a_million_millions() -> None:
    batch = random_batch(4, negatives=0)
    anchor = batch.anchor.clone()
    anchor[0] = 0
    peer = _stock("MultipleNegativesRankingLoss", scale=20.0)
    theirs = anchor.clone().requires_grad_()
    peer.compute_loss_from_embeddings([theirs, batch.positive[:, 0]], None).backward()
    ours = anchor.clone().requires_grad_()
    InfoNCE(temperature=0.05)(dataclasses.replace(batch, anchor=ours), {}).backward()
    assert theirs.grad is not None
    assert ours.grad is not None
    assert float(theirs.grad[0].abs().max()) > 1e9
    assert not ours.grad[0].any()
    assert torch.allclose(ours.grad[1:], theirs.grad[1:], rtol=1e-6)
