from __future__ import annotations

import math

import pytest
import torch
from emberge import Embeddings
from emberge_train.losses.angle import AnglE

from tests.support.losses import at, scored_pairs


def _closeness(anchor: float, text: float) -> float:
    """|cos + sin| of the angle between two complex numbers of length one."""
    angle = math.radians(anchor - text)
    return abs(math.cos(angle) + math.sin(angle))


def test_by_hand_in_the_complex_plane() -> None:
    batch = Embeddings(
        anchor=torch.tensor(at(0, 90, 30), dtype=torch.float64),
        positive=torch.tensor(at(10, 20, 170), dtype=torch.float64)[:, None],
        negative=torch.zeros(3, 0, 2, dtype=torch.float64),
        valid=torch.ones(3, 1, dtype=torch.bool),
        text_id=torch.arange(6).view(3, 2),
        positive_score=torch.tensor([[1.0], [0.5], [0.5]]),
    )
    near, *others = (_closeness(*pair) for pair in ((0, 10), (90, 20), (30, 170)))
    expected = math.log1p(sum(math.exp(2 * (other - near)) for other in others))
    assert float(AnglE(scale=2)(batch, {})) == pytest.approx(expected, rel=1e-9)


def test_it_keeps_a_gradient_where_the_cosine_has_none() -> None:
    cosines = torch.tensor([1.0 - 1e-9, 0.2], dtype=torch.float64)
    batch = scored_pairs(cosines, [0.0, 1.0])
    positive = batch.positive.clone().requires_grad_()
    AnglE(scale=1)(
        Embeddings(
            batch.anchor,
            positive,
            batch.negative,
            batch.valid,
            batch.text_id,
            positive_score=batch.positive_score,
        ),
        {},
    ).backward()
    assert positive.grad is not None
    cosine_gradient = float(batch.positive[0, 0, 1])  # the sine of the angle
    assert float(positive.grad[0].norm()) > 1000 * cosine_gradient


def test_a_scale_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="scale must be above 0"):
        AnglE(scale=0)


def test_it_needs_scores() -> None:
    batch = scored_pairs(torch.tensor([0.1, 0.5], dtype=torch.float64), None)
    with pytest.raises(ValueError, match="AnglE needs scores; set unscored: true"):
        AnglE()(batch, {})
