from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from emberge_codiemb.losses.pearson import Pearson
from emberge_codiemb.losses.ranknet import RankNet

from tests.support.losses import random_batch, scored_pairs

Y4 = ([0.8, 0.6, 0.3, 0.4], [1, 0.5, 0.5, 0])
Y3 = ([0.5, 0.5, 1.0], [1, 0.5, 0])


def _pairs(example: tuple[list[float], list[float]]) -> Any:
    return scored_pairs(torch.tensor(example[0], dtype=torch.float64), example[1])


def test_pearson_worked_number() -> None:
    assert float(Pearson()(_pairs(Y4), {})) == pytest.approx(0.263540306, abs=1e-9)


@pytest.mark.parametrize(("example", "expected"), [(Y4, 2.927766635), (Y3, 2.641301149)])
def test_ranknet_worked_numbers(example: Any, expected: float) -> None:
    assert float(RankNet()(_pairs(example), {})) == pytest.approx(expected, abs=1e-9)


def test_ranknet_worked_gradient() -> None:
    cosines = torch.tensor([0.5, 0.5, 0.9999999], dtype=torch.float64, requires_grad=True)
    RankNet()(scored_pairs(cosines, Y3[1]), {}).backward()
    assert cosines.grad is not None
    expected = torch.tensor([-1.122459, -0.122459, 1.244919], dtype=torch.float64)
    assert torch.allclose(cosines.grad, expected, atol=1e-5)


def test_the_mean_of_ranknet_is_over_ordered_pairs() -> None:
    mean = RankNet(reduction="mean")(_pairs(Y4), {})
    assert float(mean) == pytest.approx(2.927766635 / 5, abs=1e-9)  # six pairs, and one is a tie


def test_blocks_of_ranknet_are_its_whole_table(monkeypatch: pytest.MonkeyPatch) -> None:
    import emberge.numerics.similarity as vectors

    def found() -> tuple[float, torch.Tensor]:
        batch = random_batch(30, negatives=1)
        anchor = batch.anchor.requires_grad_()
        value = RankNet(scale=5)(batch, {})
        return value.item(), torch.autograd.grad(value, anchor)[0]

    whole, gradient = found()
    monkeypatch.setattr(vectors, "CELLS", 200)
    in_blocks, other = found()
    assert in_blocks == pytest.approx(whole, rel=1e-12)
    assert torch.allclose(gradient, other, rtol=1e-9)


def test_pearson_is_scipy_s() -> None:
    from scipy.stats import pearsonr

    batch = random_batch(40, negatives=2)
    cosines = torch.cosine_similarity(batch.anchor[:, None], batch.candidates, dim=-1)
    expected = 1 - pearsonr(cosines.flatten().numpy(), batch.scores.flatten().numpy()).statistic
    assert float(Pearson()(batch, {})) == pytest.approx(expected, rel=1e-9)


def test_pearson_has_its_best_on_a_line() -> None:
    line = ([0.1, 0.3, 0.7], [0.2, 0.4, 0.8])
    assert float(Pearson()(_pairs(line), {})) == pytest.approx(0, abs=1e-12)
    turned = ([0.7, 0.3, 0.1], [0.0, 2 / 3, 1.0])
    assert float(Pearson()(_pairs(turned), {})) == pytest.approx(2, abs=1e-9)


@pytest.mark.parametrize(
    "example", [([0.3, 0.7], [0.5, 0.5]), ([0.4, 0.4], [0.0, 1.0]), ([0.4], [0.5])]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_a_spread_there_is_no_correlation(example: Any, dtype: torch.dtype) -> None:
    batch = _pairs(example)
    positive = batch.positive.to(dtype).requires_grad_()
    same = {"anchor": batch.anchor.to(dtype), "negative": batch.negative.to(dtype)}
    value = Pearson()(dataclasses.replace(batch, positive=positive, **same), {})
    value.backward()
    assert value.item() == 0
    assert positive.grad is not None
    assert not positive.grad.any()


def test_rounding_is_no_spread() -> None:
    torch.manual_seed(0)
    text = torch.randn(64)
    batch = random_batch(50, size=64, negatives=0)
    lengths = 1 + torch.rand(50, 1)
    positive = (text * lengths)[:, None].requires_grad_()  # the same direction but for rounding
    anchor = (text * lengths.flip(0)).contiguous()
    value = Pearson()(
        dataclasses.replace(batch, anchor=anchor, positive=positive, negative=positive[:, :0]), {}
    )
    value.backward()
    assert value.item() == 0
    assert positive.grad is not None
    assert not positive.grad.any()


@pytest.mark.parametrize("loss", [Pearson(), RankNet()])
def test_scores_are_needed(loss: Any) -> None:
    assert loss.needs == {"positive_score"}
    assert not loss.cross_rank
    with pytest.raises(ValueError, match="needs scores"):
        loss(random_batch(3, positive_score=None, negative_score=None), {})
