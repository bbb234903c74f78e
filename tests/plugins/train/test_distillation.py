from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from emberge import Embeddings, Guide, Loss, ModelRef
from emberge_train.losses.kl_distillation import KLDistillation
from emberge_train.losses.margin_mse import MarginMSE

from tests.support.losses import at, random_batch


def _row(teacher: list[float]) -> Embeddings:
    """An anchor at 0°, a positive at 60° and negatives at 90° and 120°: cosines 0.5, 0 and -0.5."""
    texts = torch.tensor([at(60, 90, 120)], dtype=torch.float64)
    scores = torch.tensor([teacher], dtype=torch.float64)
    return Embeddings(
        anchor=torch.tensor(at(0), dtype=torch.float64),
        positive=texts[:, :1],
        negative=texts[:, 1:],
        valid=torch.ones(1, 3, dtype=torch.bool),
        text_id=torch.arange(4)[None],
        positive_score=scores[:, :1],
        negative_score=scores[:, 1:],
    )


def test_margin_mse_by_hand() -> None:
    # Margins 0.5 and 1.0 against the teacher's 0.2 and 0.9.
    value = MarginMSE()(_row([1.0, 0.8, 0.1]), {})
    assert float(value) == pytest.approx((0.3**2 + 0.1**2) / 2, rel=1e-9)
    scaled = MarginMSE(scale=2)(_row([1.0, 0.8, 0.1]), {})
    assert float(scaled) == pytest.approx((0.8**2 + 1.1**2) / 2, rel=1e-9)


def test_kl_distillation_by_hand() -> None:
    teacher, student = [1.0, 0.8, 0.1], [0.5, 0.0, -0.5]

    def shares(values: list[float], temperature: float) -> list[float]:
        powers = [math.exp(v / temperature) for v in values]
        return [p / sum(powers) for p in powers]

    p, q = shares(teacher, 0.25), shares(student, 0.25)
    expected = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    loss = KLDistillation(temperature=0.25)
    assert float(loss(_row(teacher), {})) == pytest.approx(expected, rel=1e-9)
    rescaled = dataclasses.replace(loss, rescale=True)
    assert float(rescaled(_row(teacher), {})) == pytest.approx(expected / 16, rel=1e-9)


def test_a_guide_is_given_to_a_loss_that_lacks_one() -> None:
    first, second = (Guide(model=ModelRef(text)) for text in ("./first", "./second"))
    assert KLDistillation().with_guide(second).guide == second
    assert KLDistillation(guide=first).with_guide(second).guide == first


@pytest.mark.parametrize("loss", [MarginMSE(), KLDistillation()])
def test_a_student_that_agrees_has_nothing_to_learn(loss: Loss) -> None:
    assert float(loss(_row([0.5, 0.0, -0.5]), {})) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("loss", [MarginMSE(), KLDistillation()])
def test_texts_without_a_score_take_no_part(loss: Loss) -> None:
    batch = random_batch(4, negatives=3)
    scores = batch.negative_score
    assert scores is not None
    lacking = scores.clone()
    lacking[:, 2] = torch.nan
    fewer = dataclasses.replace(
        batch,
        negative=batch.negative[:, :2],
        negative_score=scores[:, :2],
        valid=batch.valid[:, :3],
        text_id=batch.text_id[:, :4],
    )
    there = loss(dataclasses.replace(batch, negative_score=lacking), {})
    assert float(there) == pytest.approx(float(loss(fewer, {})), rel=1e-9)


@pytest.mark.parametrize("loss", [MarginMSE(), KLDistillation()])
def test_several_positives_are_taught_too(loss: Loss) -> None:
    batch = random_batch(4, positives=2, negatives=2)
    changed = batch.positive.clone()
    changed[:, 1] *= -1
    first, second = (loss(b, {}) for b in (batch, dataclasses.replace(batch, positive=changed)))
    assert abs(float(first - second)) > 1e-3


@pytest.mark.parametrize("loss", [MarginMSE(), KLDistillation()])
def test_data_without_a_teacher_is_refused(loss: Loss) -> None:
    batch = random_batch(4, negative_score=None)
    with pytest.raises(ValueError, match="needs a teacher's scores of positives and negatives"):
        loss(batch, {})


def test_impossible_options_are_refused() -> None:
    with pytest.raises(ValueError, match="temperature must be above 0"):
        KLDistillation(temperature=0)
    with pytest.raises(ValueError, match="scale must be above 0"):
        MarginMSE(scale=-1)
