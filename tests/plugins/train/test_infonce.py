from __future__ import annotations

import dataclasses

import pytest
import torch
from emberge import Embeddings
from emberge.testing import check_loss, example_embeddings
from emberge_train.losses.infonce import InfoNCE

from tests.support.losses import GUIDE, angled_groups


@pytest.mark.parametrize(
    ("temperature", "hard", "in_batch"),
    [(1.0, 0.479839829, 0.938727550), (0.05, 6.151769e-05, 0.044501200)],
)
def test_boom_worked_numbers(temperature: float, hard: float, in_batch: float) -> None:
    loss = InfoNCE(temperature=temperature)
    for within, expected in ((False, hard), (True, in_batch)):
        batch = angled_groups([[10], [80]], [[60], [150]], in_batch=within)
        assert float(loss(batch, {})) == pytest.approx(expected, rel=1e-7)


class _Terms(InfoNCE):
    """The terms [b, p] before they are reduced."""

    def _reduce(self, terms: torch.Tensor, e: Embeddings) -> torch.Tensor:
        return terms


@pytest.mark.parametrize(
    ("temperature", "in_batch", "expected"),
    [
        (1.0, False, [0.479839829, 0.479839829]),
        (1.0, True, [0.796274143, 1.081180957]),
        (0.05, False, [6.151769e-05, 6.151769e-05]),
        (0.05, True, [6.160771e-05, 0.088940792]),
    ],
)
def test_boom_worked_terms(temperature: float, in_batch: bool, expected: list[float]) -> None:
    batch = angled_groups([[10], [80]], [[60], [150]], in_batch=in_batch)
    terms = _Terms(temperature=temperature)(batch, {})
    assert terms[:, 0].tolist() == pytest.approx(expected, rel=2e-7)


def test_equal_texts_leave_the_denominator() -> None:
    batch = example_embeddings(4, positives=1, negatives=1)
    twins = batch.text_id.clone()
    twins[1, 1] = twins[0, 1]  # row 1's positive has the text of row 0's
    batch = dataclasses.replace(batch, text_id=twins)
    plain, masked = (InfoNCE(temperature=0.5, mask_equal_text=m)(batch, {}) for m in (False, True))
    assert masked < plain
    loss, plain_loss = (InfoNCE(temperature=0.5, mask_equal_text=m) for m in (True, False))
    moved = batch.positive.clone()
    moved[1] = -batch.anchor[0]
    other = dataclasses.replace(batch, positive=moved)
    assert torch.equal(_pull(loss, batch), _pull(loss, other))
    assert not torch.equal(_pull(plain_loss, batch), _pull(plain_loss, other))


def test_filling_has_no_text() -> None:
    batch = example_embeddings(4, positives=2, negatives=0)  # row 0 has one positive only
    twins = batch.text_id.clone()
    twins[0, 2] = twins[2, 1]  # an id that stands in a place that is filling means nothing
    loss = InfoNCE(temperature=0.5, mask_equal_text=True)
    other = dataclasses.replace(batch, text_id=twins)
    assert torch.equal(loss(batch, {}), loss(other, {}))


def test_equal_labels_leave_the_denominator() -> None:
    batch = example_embeddings(4, positives=1, negatives=1)  # labels 0 0 1 1
    loss = InfoNCE(temperature=0.5, mask_equal_label=True)
    moved = batch.positive.clone()
    moved[1] = 9.0
    other = dataclasses.replace(batch, positive=moved)
    assert torch.equal(_pull(loss, batch), _pull(loss, other))
    moved[2] = 9.0
    assert not torch.equal(
        _pull(loss, batch), _pull(loss, dataclasses.replace(batch, positive=moved))
    )


def _pull(loss: InfoNCE, batch: Embeddings) -> torch.Tensor:
    """The gradient of the first anchor: what its own row's term alone decides."""
    anchor = batch.anchor.clone().requires_grad_()
    value = loss(dataclasses.replace(batch, anchor=anchor), loss.parameters())
    return torch.autograd.grad(value, anchor)[0][0]


def test_a_guide_bars_texts_of_a_slot_too() -> None:
    """The guide has row 1's positives nearer to row 0's anchor than its own: nothing is left to push from."""
    batch = example_embeddings(2, positives=2, negatives=0)
    batch = dataclasses.replace(batch, valid=torch.ones(2, 2, dtype=torch.bool))
    near, far = torch.tensor([1.0, 0.0]), torch.tensor([0.6, 0.8])
    seen = dataclasses.replace(
        batch,
        anchor=torch.stack([near, near]),
        positive=torch.stack([far.expand(2, 2), near.expand(2, 2)]),
        negative=torch.zeros(2, 0, 2),
    )
    guided = dataclasses.replace(batch, guide=seen)
    for denominator in ("all", "same_slot"):
        options = {"temperature": 0.5, "positives_in_denominator": denominator}
        plain, barred = InfoNCE(**options), InfoNCE(guide=GUIDE, **options)
        assert float(_pull(plain, guided).abs().max()) > 0
        assert float(_pull(barred, guided).abs().max()) == 0


def test_symmetric_is_the_mean_of_both_ways() -> None:
    batch = example_embeddings(5, positives=1, negatives=0)
    a = torch.nn.functional.normalize(batch.anchor, dim=-1)
    p = torch.nn.functional.normalize(batch.positive[:, 0], dim=-1)
    scores = a @ p.T / 0.1
    places = torch.arange(5)
    cross_entropy = torch.nn.functional.cross_entropy
    both = (cross_entropy(scores, places) + cross_entropy(scores.T, places)) / 2
    assert torch.allclose(InfoNCE(temperature=0.1, symmetric=True)(batch, {}), both)


def test_without_any_negative_there_is_nothing_to_learn() -> None:
    batch = example_embeddings(3, positives=1, negatives=0, in_batch=False)
    assert float(InfoNCE()(batch, {})) == 0.0


@pytest.mark.parametrize(
    "loss",
    [
        InfoNCE(temperature=0.1),
        InfoNCE(temperature=0.1, positives_in_denominator="same_slot", slot_reduction="sum"),
        InfoNCE(temperature=0.1, mask_equal_text=True, mask_equal_label=True, symmetric=True),
    ],
)
def test_laws(loss: InfoNCE) -> None:
    check_loss(loss)


def test_a_temperature_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="temperature must be above 0"):
        InfoNCE(temperature=0)
