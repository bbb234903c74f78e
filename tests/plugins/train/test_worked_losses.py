"""Losses by hand: worked numbers in one table, and what leaves a denominator, an order or a mean."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from emberge import Embeddings, Loss, Similarity
from emberge.testing import draw_embeddings
from emberge_train import FLOPS, BinaryCrossEntropy, KeepSpace, SpreadOut
from emberge_train.losses.cosent import CoSENT
from emberge_train.losses.infonce import InfoNCE
from emberge_train.losses.score_distillation import KLDistillation, MarginMSE

from tests.support.losses import GUIDE, angled_groups, at, random_batch, scored_pairs

LN3, NAN = math.log(3), math.nan  # the sigmoid of ln 3 is 3/4


def _double(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _batch(anchor: Any, positive: Any, negative: Any, **more: Any) -> Embeddings:
    """Rows with one positive and one negative each."""
    columns = [_double(one) for one in (anchor, positive, negative)]
    rows = len(anchor)
    given: dict[str, Any] = {
        "valid": torch.ones(rows, 2, dtype=torch.bool),
        "text_id": torch.arange(3 * rows).view(rows, 3),
        **more,
    }
    return Embeddings(columns[0], columns[1][:, None], columns[2][:, None], **given)


def _lacking(batch: Embeddings, row: int) -> Embeddings:
    """The batch without the negative of a row."""
    valid = batch.valid.clone()
    valid[row, 1] = False
    return dataclasses.replace(batch, valid=valid)


# Retrieval of which pairs are scored one and zero.
UNSCORED = dataclasses.replace(
    scored_pairs(_double([0.3, 0.7]), None),
    negative=_double([[[0.6, 0.8]], [[0.0, 1.0]]]),
    valid=torch.ones(2, 2, dtype=torch.bool),
)
ORDERED = math.log1p(sum(math.exp(n - p) for p in (0.3, 0.7) for n in (0.6, 0.0)))

# Mean weights of three documents, 2/3 and 2, and of two queries, 2 and 1; one row lacks its negative.
SPARSE = _lacking(_batch([[1, 0], [3, 2]], [[2, 0], [0, 4]], [[0, 2], [9, 9]]), 1)
OPPOSED = dataclasses.replace(SPARSE, positive=-SPARSE.positive)
DOCUMENTS, QUERIES = (2 / 3) ** 2 + 2**2, 2**2 + 1**2


def _judged(positive: float, negative: float, *, missing: bool = False, **more: Any) -> Embeddings:
    """A row by a reranker's scores of its positive and its negative."""
    similarity = Similarity("pair_score", unit=False)
    batch = _batch([[1.0]], [[positive]], [[negative]], similarity=similarity, **more)
    return _lacking(batch, 0) if missing else batch


def _taught(*teacher: float) -> Embeddings:
    """An anchor at 0°, a positive at 60° and negatives at 90° and 120°: cosines 0.5, 0 and -0.5."""
    texts, scores = _double([at(60, 90, 120)]), _double([teacher])
    return Embeddings(
        anchor=_double(at(0)),
        positive=texts[:, :1],
        negative=texts[:, 1:],
        valid=torch.ones(1, 3, dtype=torch.bool),
        text_id=torch.arange(4)[None],
        positive_score=scores[:, :1],
        negative_score=scores[:, 1:],
    )


def _divergence(teacher: list[float], student: list[float], temperature: float) -> float:
    def shares(values: list[float]) -> list[float]:
        powers = [math.exp(v / temperature) for v in values]
        return [p / sum(powers) for p in powers]

    return sum(a * math.log(a / b) for a, b in zip(shares(teacher), shares(student), strict=True))


KL = _divergence([1.0, 0.8, 0.1], [0.5, 0.0, -0.5], 0.25)
TAUGHT, AGREEING = _taught(1.0, 0.8, 0.1), _taught(0.5, 0.0, -0.5)

OLD = _batch([[2, 0], [1, 0]], [[4, 3], [0, 1]], [[0, 7], [1, 0]])
OWN = _batch([[1, 0], [0, 2]], [[3, 4], [1, 0]], [[0, 1], [5, 0]], guide=OLD)

GROUPS = {within: angled_groups([[10], [80]], [[60], [150]], in_batch=within) for within in (0, 1)}

WORKED: Mapping[str, tuple[Loss, Embeddings, float]] = {
    "infonce without any negative": (
        InfoNCE(),
        draw_embeddings(3, positives=1, negatives=0, in_batch=False),
        0.0,
    ),
    "cosent of equal scores": (CoSENT(), scored_pairs(_double([0.1, 0.9]), [0.5, 0.5]), 0.0),
    "cosent of retrieval": (CoSENT(scale=1, unscored=True), UNSCORED, ORDERED),
    "flops": (FLOPS(documents=0.9, queries=0.1), SPARSE, 0.9 * DOCUMENTS + 0.1 * QUERIES),
    "flops of documents alone": (FLOPS(documents=0.9, queries=0), SPARSE, 0.9 * DOCUMENTS),
    # Weights of 2 and -2 cost a search as much as two of 2.
    "flops of any sign": (FLOPS(documents=0.9, queries=0), OPPOSED, 0.9 * DOCUMENTS),
    # It grows with the square of the step for a third of them.
    **{
        f"flops at {progress:.2f}": (
            FLOPS(documents=1, queries=1),
            dataclasses.replace(SPARSE, progress=progress),
            share * (DOCUMENTS + QUERIES),
        )
        for progress, share in ((0.0, 0.0), (1 / 6, 0.25), (1 / 3, 1.0), (0.9, 1.0))
    },
    # Anchors at 60° of each other, positives at 45°.
    "spread_out": (SpreadOut(), angled_groups([[10], [55]], [[0], [0]], (0, 60)), 0.25 + 0.5),
    "spread_out of one row": (SpreadOut(), TAUGHT, 0.0),
    # 3/4 of the positive's probability is right, and 1/2 of the negative's.
    "bce": (BinaryCrossEntropy(), _judged(LN3, 0), -math.log(3 / 8) / 2),
    "bce of a misfit": (BinaryCrossEntropy(), _judged(0, LN3), -math.log(1 / 8) / 2),
    "bce by a score": (
        BinaryCrossEntropy(),
        _judged(0, LN3, negative_score=torch.tensor([[0.5]])),
        -(math.log(1 / 2) + math.log(3 / 16) / 2) / 2,
    ),
    "bce by no score": (
        BinaryCrossEntropy(),
        _judged(0, LN3, negative_score=torch.tensor([[NAN]])),
        -math.log(1 / 8) / 2,
    ),
    "bce, scaled": (BinaryCrossEntropy(scale=20), _judged(LN3 / 20, 0), -math.log(3 / 8) / 2),
    "bce, lacking": (BinaryCrossEntropy(), _judged(LN3, 7, missing=True), -math.log(3 / 4)),
    # Margins 0.5 and 1.0 against the teacher's 0.2 and 0.9.
    "margin_mse": (MarginMSE(), TAUGHT, (0.3**2 + 0.1**2) / 2),
    "margin_mse that agrees": (MarginMSE(), AGREEING, 0.0),
    "kl": (KLDistillation(temperature=0.25), TAUGHT, KL),
    "kl that agrees": (KLDistillation(), AGREEING, 0.0),
    # 2 - 2 cos: of row 0 0.08 (cosine 24 / 25) and 0, of row 1 2 (a right angle) and 0.
    "keep_space": (KeepSpace(guide=GUIDE), OWN, (0.08 / 2 + 2 / 2) / 2),
    "keep_space, lacking": (KeepSpace(guide=GUIDE), _lacking(OWN, 0), (0.08 + 2 / 2) / 2),
}


@pytest.mark.parametrize("name", WORKED)
def test_losses_have_the_values_worked_by_hand(name: str) -> None:
    loss, batch, expected = WORKED[name]
    assert float(loss(batch)) == pytest.approx(expected, rel=1e-7, abs=1e-12)


def test_only_valid_texts_of_different_rows_are_spread() -> None:
    batch = random_batch(5, positives=2)
    valid = batch.valid.clone()
    valid[3, 1] = False
    row, slot = valid[:, :2].nonzero(as_tuple=True)
    expected = 0.0
    for texts, rows in ((batch.anchor, torch.arange(5)), (batch.positive[row, slot], row)):
        cosines = torch.cosine_similarity(texts[:, None], texts, dim=-1)
        expected += float(cosines[rows[:, None] != rows].square().mean())
    loss = SpreadOut()(dataclasses.replace(batch, valid=valid))
    assert float(loss) == pytest.approx(expected, rel=1e-9)


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
def test_terms_of_booms_equation_are_worked(
    temperature: float, in_batch: bool, expected: list[float]
) -> None:
    terms = _Terms(temperature=temperature)(GROUPS[in_batch])
    assert terms[:, 0].tolist() == pytest.approx(expected, rel=2e-7)


# ── what leaves a denominator ───────────────────────────────────────────────────────────────────


def _pull(loss: InfoNCE, batch: Embeddings) -> torch.Tensor:
    """The gradient of the first anchor: what its own row's term alone decides."""
    anchor = batch.anchor.clone().requires_grad_()
    value = loss(dataclasses.replace(batch, anchor=anchor))
    return torch.autograd.grad(value, anchor)[0][0]


def _moved(batch: Embeddings, row: int, to: Any) -> Embeddings:
    positive = batch.positive.clone()
    positive[row] = to
    return dataclasses.replace(batch, positive=positive)


def test_equal_texts_leave_the_denominator() -> None:
    batch = draw_embeddings(4, positives=1, negatives=1)
    twins = batch.text_id.clone()
    twins[1, 1] = twins[0, 1]  # row 1's positive has the text of row 0's
    batch = dataclasses.replace(batch, text_id=twins)
    masked, plain = (InfoNCE(temperature=0.5, mask_equal_text=m) for m in (True, False))
    assert masked(batch) < plain(batch)
    other = _moved(batch, 1, -batch.anchor[0])
    assert torch.equal(_pull(masked, batch), _pull(masked, other))
    assert not torch.equal(_pull(plain, batch), _pull(plain, other))


def test_the_text_of_a_padded_place_does_not_matter() -> None:
    batch = draw_embeddings(4, positives=2, negatives=0)  # row 0 has one positive only
    twins = batch.text_id.clone()
    twins[0, 2] = twins[2, 1]  # an id that stands in a place that is filling means nothing
    loss = InfoNCE(temperature=0.5, mask_equal_text=True)
    assert torch.equal(loss(batch), loss(dataclasses.replace(batch, text_id=twins)))


def test_equal_labels_leave_the_denominator() -> None:
    batch = draw_embeddings(4, positives=1, negatives=1)  # labels 0 0 1 1
    loss = InfoNCE(temperature=0.5, mask_equal_label=True)
    for row, leaves in ((1, True), (2, False)):
        other = _moved(batch, row, 9.0)
        assert torch.equal(_pull(loss, batch), _pull(loss, other)) == leaves


@pytest.mark.parametrize("loss", [MarginMSE(), KLDistillation()])
def test_texts_without_a_score_take_no_part_and_several_positives_do(loss: Loss) -> None:
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
    there = loss(dataclasses.replace(batch, negative_score=lacking))
    assert float(there) == pytest.approx(float(loss(fewer)), rel=1e-9)
    batch = random_batch(4, positives=2, negatives=2)
    other = _moved(batch, slice(None), batch.positive * torch.tensor([[1.0], [-1.0]]))  # type: ignore[arg-type]
    assert abs(float(loss(batch) - loss(other))) > 1e-3
