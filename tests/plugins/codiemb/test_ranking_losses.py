"""Losses on scored pairs and on their true matches, beside the same by loops, on plain and odd batches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from emberge import Embeddings, Loss, ModelRef
from emberge_codiemb.mid_nce import MidNCE
from emberge_codiemb.pair_losses import PRO, Pearson, RankKL
from emberge_train import EmbeddingDistillation, Guide, InfoNCE, Matryoshka
from torch import Tensor

from tests.support.losses import random_batch, scored_pairs
from tests.support.tolerance import exactly

# Cosines and scores of a batch's pairs.
Pairs = tuple[Sequence[Tensor], Sequence[float]]


# ── by loops ────────────────────────────────────────────────────────────────────────────────────


def pearson(pairs: Pairs) -> Tensor:
    cosines, scores = pairs
    n = len(scores)
    middle, level = torch.stack([*cosines]).sum() / n, sum(scores) / n
    squares = torch.stack([(c - middle) ** 2 for c in cosines]).sum()
    spread = sum((y - level) ** 2 for y in scores)
    if spread < 1e-16 or squares.item() < 1e-16:
        return middle * 0
    together = torch.stack(
        [(c - middle) * (y - level) for c, y in zip(cosines, scores, strict=True)]
    ).sum()
    return 1 - together / (squares**0.5 * spread**0.5)


def rank_kl(pairs: Pairs, temperature: float = 0.05) -> Tensor:
    cosines, scores = pairs
    n = len(scores)
    ranks = [sum(o > y for o in scores) + (sum(o == y for o in scores) - 1) / 2 for y in scores]
    targets = [math.exp((n - 1 - r) / max(1, n - 1) / temperature) for r in ranks]
    shares = [math.exp(float(c.detach()) / temperature) for c in cosines]
    assert all(map(math.isfinite, (*targets, *shares)))
    total = torch.stack([(c / temperature).exp() for c in cosines]).sum()
    terms = []
    for c, target in zip(cosines, targets, strict=True):
        p = target / sum(targets)
        terms.append(p * (math.log(p) - (c / temperature - total.log())))
    return torch.stack(terms).sum() / n


def pro(pairs: Pairs, temperature: float = 0.05) -> Tensor:
    cosines, scores = pairs
    terms = []
    for high, y in zip(cosines, scores, strict=True):
        below = [(low, y - o) for low, o in zip(cosines, scores, strict=True) if y - o > 1e-8]
        if below:
            own = (high * max(gap for _, gap in below) / temperature).exp()
            others = torch.stack([(low * gap / temperature).exp() for low, gap in below]).sum()
            terms.append(-(own / (own + others)).log())
    return torch.stack(terms).mean() if terms else cosines[0] * 0


BY_LOOPS: Mapping[str, tuple[Loss, Callable[[Pairs], Tensor]]] = {
    "pearson": (Pearson(), pearson),
    "rank_kl": (RankKL(), rank_kl),
    "rank_kl, warm": (RankKL(temperature=2), lambda pairs: rank_kl(pairs, 2)),
    "pro": (PRO(), pro),
    "pro, warm": (PRO(temperature=2), lambda pairs: pro(pairs, 2)),
}


def _with_scores(batch: Embeddings, score: Tensor) -> Embeddings:
    return dataclasses.replace(batch, positive_score=score[:, :1], negative_score=score[:, 1:])


def _scored(rows: int, negatives: int = 0, levels: int = 5) -> Embeddings:
    """Pairs with so many different scores, from 0 to 1."""
    batch = random_batch(rows, negatives=negatives)
    score = (batch.scores * levels).floor() / max(1, levels - 1)
    return _with_scores(batch, score)


def _alike(batch: Embeddings) -> Embeddings:
    """The batch with one and the same cosine in each of its pairs."""
    return dataclasses.replace(
        batch,
        anchor=batch.anchor[:1].expand_as(batch.anchor),
        positive=batch.positive[:1].expand_as(batch.positive),
    )


def _with_gaps(batch: Embeddings) -> Embeddings:
    """The batch with places that are filling, and texts without a score."""
    valid, score = batch.valid.clone(), batch.scores
    valid[0, 1] = valid[3, 2] = False
    score[1, 1] = score[4, 0] = torch.nan
    return dataclasses.replace(_with_scores(batch, score), valid=valid)


BATCHES: Mapping[str, Embeddings] = {
    "scores with ties": _scored(12),
    "negatives with scores": _scored(7, negatives=2),
    "all scores different": random_batch(9, negatives=0),
    "gaps": _with_gaps(_scored(8, negatives=2)),
    "one pair": _scored(1),
    "two pairs": random_batch(2, negatives=0),
    "two pairs with one score": _scored(2, levels=1),
    "constant scores": _scored(10, levels=1),
    "constant cosines": _alike(_scored(10)),
    "all constant": _alike(_scored(10, levels=1)),
}


def _with_leaves(batch: Embeddings) -> tuple[Embeddings, Tensor, Tensor]:
    """The batch, and the anchors and texts of which gradients are taken."""
    anchor, texts = (
        column.detach().clone().requires_grad_() for column in (batch.anchor, batch.candidates)
    )
    seen = dataclasses.replace(batch, anchor=anchor, positive=texts[:, :1], negative=texts[:, 1:])
    return seen, anchor, texts


def _assert_equal(value: Tensor, expected: Tensor, leaves: tuple[Tensor, Tensor]) -> None:
    """Values and finite gradients are equal."""
    assert value.item() == pytest.approx(expected.item(), rel=1e-9, abs=1e-12)
    own, other = (torch.autograd.grad(one, leaves) for one in (value, expected))
    for mine, theirs in zip(own, other, strict=True):
        assert torch.isfinite(mine).all()
        assert torch.allclose(mine, theirs, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", BY_LOOPS)
def test_a_loss_and_its_gradient_are_those_of_loops(name: str, batch: str) -> None:
    loss, by_loops = BY_LOOPS[name]
    given = BATCHES[batch]
    seen, anchor, texts = _with_leaves(given)
    value = loss(seen)
    cosines = torch.cosine_similarity(anchor[:, None], texts, dim=-1)
    there = (given.valid & ~given.scores.isnan()).nonzero().tolist()
    pairs = [cosines[i, c] for i, c in there], [float(given.scores[i, c]) for i, c in there]
    _assert_equal(value, by_loops(pairs), (anchor, texts))


@pytest.mark.parametrize("name", BY_LOOPS)
def test_a_batch_without_a_scored_pair_gives_nothing(name: str) -> None:
    batch = random_batch(3, negatives=0)
    positive = batch.positive.clone().requires_grad_()
    score = torch.full_like(batch.scores, torch.nan)
    value = BY_LOOPS[name][0](dataclasses.replace(batch, positive=positive, positive_score=score))
    (gradient,) = torch.autograd.grad(value, positive)
    assert value.item() == 0
    assert not gradient.any()


def test_blocks_are_the_whole_table(monkeypatch: pytest.MonkeyPatch) -> None:
    import emberge.numerics.score_tables as vectors

    def found() -> tuple[float, torch.Tensor]:
        batch = random_batch(30, negatives=1)
        anchor = batch.anchor.requires_grad_()
        value = PRO()(batch)
        return value.item(), torch.autograd.grad(value, anchor)[0]

    whole, gradient = found()
    monkeypatch.setattr(vectors, "MOST_CELLS", 200)
    in_blocks, other = found()
    assert in_blocks == pytest.approx(whole, rel=1e-12)
    assert torch.allclose(gradient, other, rtol=1e-9)


def test_rounding_is_no_spread() -> None:
    torch.manual_seed(0)
    text = torch.randn(64)
    batch = random_batch(50, size=64, negatives=0)
    lengths = 1 + torch.rand(50, 1)
    positive = (text * lengths)[:, None].requires_grad_()  # the same direction but for rounding
    anchor = (text * lengths.flip(0)).contiguous()
    value = Pearson()(
        dataclasses.replace(batch, anchor=anchor, positive=positive, negative=positive[:, :0])
    )
    value.backward()
    assert value.item() == 0
    assert positive.grad is not None
    assert not positive.grad.any()


# ── true matches of a layer ─────────────────────────────────────────────────────────────────────


def _matching(rows: int, negatives: int = 0, matching: float = 0.5) -> Embeddings:
    """Pairs of which about a share matches, with a score of exactly one."""
    batch = random_batch(rows, negatives=negatives, in_batch=False)
    score = torch.where(batch.scores < matching, 1.0, batch.scores)
    return _with_scores(batch, score)


MATCHES: Mapping[str, Embeddings] = {
    "some match": _matching(12),
    "all match": _matching(8, matching=1.1),
    "negatives match too": _matching(7, negatives=2),
    "gaps": _with_gaps(_matching(8, negatives=2)),
    "no match": _matching(5, matching=0),
    "one row": _matching(1, matching=1.1),
    "one row without a match": _matching(1, matching=0),
    "two rows": _with_scores(random_batch(2, negatives=0), torch.tensor([[1.0], [0.4]]).double()),
    "constant scores": _with_scores(random_batch(4, negatives=0), torch.ones(4, 1).double()),
    "constant cosines": _alike(_matching(6)),
}


def by_loops(anchor: Tensor, texts: Tensor, batch: Embeddings, temperature: float) -> Tensor:
    there = [(i, c) for i, c in batch.valid.nonzero().tolist()]
    matches = {place for place in there if float(batch.scores[place]) >= 1}
    terms = []
    for i, c in sorted(matches):
        power = {
            (j, k): (torch.cosine_similarity(anchor[i], texts[j, k], dim=0) / temperature).exp()
            for j, k in there
        }
        others = [power[j, k] for j, k in there if j != i or (j, k) not in matches]
        total = torch.stack([power[i, c], *others]).sum()
        terms.append(total.log() - power[i, c].log())
    return torch.stack(terms).mean() if terms else (anchor.sum() + texts.sum()) * 0


@pytest.mark.parametrize("layer", [0.5, None])
@pytest.mark.parametrize("temperature", [0.02, 0.5])
@pytest.mark.parametrize("name", MATCHES)
def test_it_is_the_contrast_by_loops(name: str, temperature: float, layer: float | None) -> None:
    batch = MATCHES[name]
    seen, anchor, texts = _with_leaves(batch)
    if layer is not None:
        seen = dataclasses.replace(_other(batch), layers={layer: seen})
    value = MidNCE(loss=(InfoNCE(temperature=temperature),), layer=layer)(seen)
    expected = by_loops(anchor, texts, batch, temperature)
    _assert_equal(value, expected, (anchor, texts))


def _other(batch: Embeddings) -> Embeddings:
    """The same rows with other vectors, which are not to be read."""
    nothing = torch.full_like(batch.anchor, torch.nan)
    return dataclasses.replace(
        batch,
        anchor=nothing,
        positive=torch.full_like(batch.positive, torch.nan),
        negative=torch.full_like(batch.negative, torch.nan),
    )


def test_a_batch_without_a_match_gives_nothing_by_any_inner_loss() -> None:
    batch = _matching(5, matching=0)
    positive = batch.positive.clone().requires_grad_()
    inner = (InfoNCE(), RankKL(weight=0.5))
    loss = MidNCE(loss=inner, layer=None)
    value = loss(dataclasses.replace(batch, positive=positive))
    value.backward()
    assert value.item() == 0
    assert positive.grad is not None
    assert not positive.grad.any()


def test_an_inner_loss_may_cut_embeddings() -> None:
    batch = _matching(9)
    cut = Matryoshka(loss=(InfoNCE(),), dims=(8,))
    inside = MidNCE(loss=(cut,), layer=None)
    outside = Matryoshka(loss=(MidNCE(loss=(InfoNCE(),)),), dims=(8,))
    assert outside.layers == (0.5,)
    seen = dataclasses.replace(_other(batch), layers={0.5: batch})
    assert float(inside(batch)) == exactly(float(outside(seen)))


def test_the_guide_is_of_the_same_texts() -> None:
    """A guide with the embeddings of the batch leaves nothing to learn."""
    batch = _matching(9)
    guide = Guide(model=ModelRef("some/guide"))
    loss = MidNCE(loss=(EmbeddingDistillation(guide=guide),), layer=None)
    assert float(loss(dataclasses.replace(batch, guide=batch))) == pytest.approx(0, abs=1e-9)
    other = dataclasses.replace(batch, anchor=batch.anchor.flip(0))
    assert float(loss(dataclasses.replace(batch, guide=other))) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_score_that_single_precision_rounds_down_is_enough(dtype: torch.dtype) -> None:
    """0.7 is a little less in single precision, in which a training keeps scores."""
    batch = scored_pairs(torch.tensor([0.9, 0.1, 0.5], dtype=dtype), None)
    score = torch.tensor([[0.7], [0.7], [0.6]])
    assert float(score[0, 0]) < 0.7
    values = [
        MidNCE(loss=(InfoNCE(temperature=1),), layer=None, least_score=least)(
            dataclasses.replace(batch, positive_score=score)
        )
        for least in (0.7, 0.65, 0.71)
    ]
    assert values[0] == values[1] > values[2] == 0


def test_what_its_losses_refuse_of_a_size_it_refuses_of_the_embedding_alone() -> None:
    """The states of a layer may be of another size."""
    cut: Loss = Matryoshka(loss=(InfoNCE(),), dims=(768,))
    assert MidNCE(loss=(cut,), layer=None).check(384) == cut.check(384)
    assert cut.check(384)
    assert not MidNCE(loss=(cut,)).check(384)
