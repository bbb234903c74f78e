"""A contrast of true matches on a layer's embeddings, beside the same by loops."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest
import torch
from emberge import Embeddings, Guide, Loss, ModelRef
from emberge_codiemb.losses.mid_nce import MidNCE
from emberge_codiemb.losses.rank_kl import RankKL
from emberge_train import InfoNCE, Matryoshka
from torch import Tensor

from tests.support.losses import Learnable, random_batch, scored_pairs
from tests.support.tolerance import exactly


def _with_scores(batch: Embeddings, score: Tensor) -> Embeddings:
    return dataclasses.replace(batch, positive_score=score[:, :1], negative_score=score[:, 1:])


def _scored(rows: int, negatives: int = 0, matching: float = 0.5) -> Embeddings:
    """Pairs of which about a share matches, with a score of exactly one."""
    batch = random_batch(rows, negatives=negatives, in_batch=False)
    score = torch.where(batch.scores < matching, 1.0, batch.scores)
    return _with_scores(batch, score)


def _alike(batch: Embeddings) -> Embeddings:
    """The batch with one and the same cosine in each of its pairs."""
    anchor = batch.anchor[:1].expand_as(batch.anchor)
    return dataclasses.replace(batch, anchor=anchor, positive=anchor[:, None])


def _with_gaps(batch: Embeddings) -> Embeddings:
    """The batch with filling, and a text without a score, which matches nothing."""
    valid, score = batch.valid.clone(), batch.scores
    valid[0, 1] = valid[3, 2] = False
    score[1, 0] = score[4, 1] = torch.nan
    return dataclasses.replace(_with_scores(batch, score), valid=valid)


BATCHES: Mapping[str, Embeddings] = {
    "some match": _scored(12),
    "all match": _scored(8, matching=1.1),
    "negatives match too": _scored(7, negatives=2),
    "gaps": _with_gaps(_scored(8, negatives=2)),
    "no match": _scored(5, matching=0),
    "one row": _scored(1, matching=1.1),
    "one row without a match": _scored(1, matching=0),
    "two rows": _with_scores(random_batch(2, negatives=0), torch.tensor([[1.0], [0.4]]).double()),
    "constant scores": _with_scores(random_batch(4, negatives=0), torch.ones(4, 1).double()),
    "constant cosines": _alike(_scored(6)),
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
@pytest.mark.parametrize("name", BATCHES)
def test_it_is_the_contrast_by_loops(name: str, temperature: float, layer: float | None) -> None:
    batch = BATCHES[name]
    anchor, texts = (one.clone().requires_grad_() for one in (batch.anchor, batch.candidates))
    seen = dataclasses.replace(batch, anchor=anchor, positive=texts[:, :1], negative=texts[:, 1:])
    if layer is not None:
        seen = dataclasses.replace(_other(batch), layers={layer: seen})
    value = MidNCE(loss=(InfoNCE(temperature=temperature),), layer=layer)(seen, {})
    expected = by_loops(anchor, texts, batch, temperature)
    assert value.item() == pytest.approx(expected.item(), rel=1e-9, abs=1e-12)
    for own, other in zip(
        torch.autograd.grad(value, (anchor, texts)),
        torch.autograd.grad(expected, (anchor, texts)),
        strict=True,
    ):
        assert torch.isfinite(own).all()
        assert torch.allclose(own, other, rtol=1e-8, atol=1e-11)


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
    batch = _scored(5, matching=0)
    positive = batch.positive.clone().requires_grad_()
    inner = (Learnable(), RankKL(weight=0.5))
    loss = MidNCE(loss=inner, layer=None)
    learned = {name: value.requires_grad_() for name, value in loss.parameters().items()}
    value = loss(dataclasses.replace(batch, positive=positive), learned)
    value.backward()
    assert value.item() == 0
    assert positive.grad is not None
    assert not positive.grad.any()
    assert [float(v.grad) for v in learned.values() if v.grad is not None] == [0]


def test_several_inner_losses_are_a_weighted_sum() -> None:
    batch = _scored(9)
    parts = (
        InfoNCE(temperature=0.1, weight=2),
        InfoNCE(temperature=0.5, symmetric=True, weight=0.3),
    )
    alone = [float(MidNCE(loss=(one,), layer=None)(batch, {})) for one in parts]
    both = MidNCE(loss=parts, layer=None)(batch, {})
    assert float(both) == exactly(sum(alone))


def test_a_sum_over_positives_is_averaged_over_the_rows_that_match() -> None:
    batch = _scored(9)
    values = [
        float(MidNCE(loss=(InfoNCE(slot_reduction=how),), layer=None)(batch, {}))  # type: ignore[arg-type]
        for how in ("mean", "sum")
    ]
    assert values[0] == exactly(values[1])  # a row has one text


def test_an_inner_loss_may_cut_embeddings() -> None:
    batch = _scored(9)
    cut = Matryoshka(loss=(InfoNCE(),), dims=(8,))
    inside = MidNCE(loss=(cut,), layer=None)
    outside = Matryoshka(loss=(MidNCE(loss=(InfoNCE(),)),), dims=(8,))
    assert outside.layers == (0.5,)
    seen = dataclasses.replace(_other(batch), layers={0.5: batch})
    assert float(inside(batch, {})) == exactly(float(outside(seen, {})))


def test_the_guide_is_of_the_same_texts() -> None:
    """A guide for which every text is as near as the match bars all of them."""
    batch = _scored(9)
    guide = Guide(model=ModelRef("some/guide"))
    seen = dataclasses.replace(batch, guide=_alike(batch))
    loss = MidNCE(loss=(InfoNCE(guide=guide, guide_margin=0.1),), layer=None)
    assert loss.guided_by == guide
    assert float(loss(seen, {})) == 0
    assert float(MidNCE(loss=(InfoNCE(),), layer=None)(batch, {})) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_score_that_single_precision_rounds_down_is_enough(dtype: torch.dtype) -> None:
    """0.7 is a little less in single precision, in which a training keeps scores."""
    batch = scored_pairs(torch.tensor([0.9, 0.1, 0.5], dtype=dtype), None)
    score = torch.tensor([[0.7], [0.7], [0.6]])
    assert float(score[0, 0]) < 0.7
    values = [
        MidNCE(loss=(InfoNCE(temperature=1),), layer=None, least_score=least)(
            dataclasses.replace(batch, positive_score=score), {}
        )
        for least in (0.7, 0.65, 0.71)
    ]
    assert values[0] == values[1] > values[2] == 0


def test_scores_below_the_least_teach_nothing() -> None:
    loss = MidNCE(loss=(InfoNCE(),), least_score=0.9)
    assert not loss.check_scores(0.0, 0.9)
    (problem,) = loss.check_scores(0.0, 0.85)
    assert "0.85" in problem
    assert "least_score 0.9" in problem
    inside = Matryoshka(loss=(loss,), dims=(8,))
    assert inside.check_scores(0.0, 0.85) == [problem]


def test_what_its_losses_refuse_of_a_size_it_refuses_of_the_embedding_alone() -> None:
    """The states of a layer may be of another size."""
    cut: Loss = Matryoshka(loss=(InfoNCE(),), dims=(768,))
    assert MidNCE(loss=(cut,), layer=None).check(384) == cut.check(384)
    assert cut.check(384)
    assert not MidNCE(loss=(cut,)).check(384)
