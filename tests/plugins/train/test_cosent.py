from __future__ import annotations

import math

import pytest
import torch
from emberge import Embeddings
from emberge.testing import check_loss
from emberge_train.losses.cosent import CoSENT

Y4 = ([0.8, 0.6, 0.3, 0.4], [1, 0.5, 0.5, 0])
Y3 = ([0.5, 0.5, 1.0], [1, 0.5, 0])


def _pairs(cosines: torch.Tensor, scores: list[float] | None) -> Embeddings:
    """Pairs of unit vectors with the given cosines."""
    sines = (1 - cosines**2).clamp(min=0).sqrt()
    return Embeddings(
        anchor=torch.tensor([[1.0, 0.0]], dtype=torch.float64).expand(len(cosines), 2),
        positive=torch.stack([cosines, sines], dim=1)[:, None],
        negative=torch.zeros(len(cosines), 0, 2, dtype=torch.float64),
        valid=torch.ones(len(cosines), 1, dtype=torch.bool),
        text_id=torch.arange(2 * len(cosines)).view(-1, 2),
        positive_score=None if scores is None else torch.tensor(scores)[:, None],
    )


@pytest.mark.parametrize(
    ("example", "scale", "expected"),
    [
        (Y4, 1, 1.613326966),
        (Y3, 1, 1.667224165),
        (Y4, 20, 2.131330262),
        (Y3, 20, 10.693192579),
    ],
)
def test_worked_numbers(
    example: tuple[list[float], list[float]], scale: float, expected: float
) -> None:
    batch = _pairs(torch.tensor(example[0], dtype=torch.float64), example[1])
    assert float(CoSENT(scale=scale)(batch, {})) == pytest.approx(expected, rel=1e-8)


def test_worked_gradient() -> None:
    cosines = torch.tensor([0.5, 0.5, 0.9999999], dtype=torch.float64, requires_grad=True)
    CoSENT(scale=1)(_pairs(cosines, Y3[1]), {}).backward()
    assert cosines.grad is not None
    expected = torch.tensor([-0.5, -0.122459, 0.622459], dtype=torch.float64)
    assert torch.allclose(cosines.grad, expected, atol=1e-5)


def test_equal_scores_order_nothing() -> None:
    assert float(CoSENT()(_pairs(torch.tensor([0.1, 0.9]), [0.5, 0.5]), {})) == 0.0


def test_retrieval_data_can_be_scored_one_and_zero() -> None:
    batch = _pairs(torch.tensor([0.3, 0.7], dtype=torch.float64), None)
    negative = torch.tensor([[[0.6, 0.8]], [[0.0, 1.0]]], dtype=torch.float64)
    batch = Embeddings(
        batch.anchor, batch.positive, negative, torch.ones(2, 2, dtype=torch.bool), batch.text_id
    )
    pairs = [(p, n) for p in (0.3, 0.7) for n in (0.6, 0.0)]
    by_hand = math.log1p(sum(math.exp(n - p) for p, n in pairs))
    assert float(CoSENT(scale=1, unscored=True)(batch, {})) == pytest.approx(by_hand, rel=1e-9)
    with pytest.raises(ValueError, match="unscored"):
        CoSENT()(batch, {})


def test_laws() -> None:
    check_loss(CoSENT())
    check_loss(CoSENT(unscored=True))
