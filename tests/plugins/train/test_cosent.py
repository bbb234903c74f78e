from __future__ import annotations

import math

import pytest
import torch
from emberge import Embeddings
from emberge.testing import check_loss
from emberge_train.losses.cosent import CoSENT

from tests.support.losses import scored_pairs


def test_equal_scores_order_nothing() -> None:
    assert float(CoSENT()(scored_pairs(torch.tensor([0.1, 0.9]).double(), [0.5, 0.5]), {})) == 0.0


def test_data_of_equal_scores_are_refused_unless_others_are_filled_in() -> None:
    assert "0.5" in str(CoSENT().check_scores(0.5, 0.5))
    assert not CoSENT().check_scores(0.5, 0.6)
    assert not CoSENT(unscored=True).check_scores(1, 1)


def test_retrieval_data_can_be_scored_one_and_zero() -> None:
    batch = scored_pairs(torch.tensor([0.3, 0.7], dtype=torch.float64), None)
    negative = torch.tensor([[[0.6, 0.8]], [[0.0, 1.0]]], dtype=torch.float64)
    batch = Embeddings(
        batch.anchor, batch.positive, negative, torch.ones(2, 2, dtype=torch.bool), batch.text_id
    )
    pairs = [(p, n) for p in (0.3, 0.7) for n in (0.6, 0.0)]
    by_hand = math.log1p(sum(math.exp(n - p) for p, n in pairs))
    assert float(CoSENT(scale=1, unscored=True)(batch, {})) == pytest.approx(by_hand, rel=1e-9)
    with pytest.raises(ValueError, match="unscored"):
        CoSENT()(batch, {})


@pytest.mark.slow
def test_laws() -> None:
    check_loss(CoSENT())
    check_loss(CoSENT(unscored=True))
