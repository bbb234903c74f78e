"""Binary cross-entropy by hand: scores of pairs whose sigmoids are simple shares."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from emberge import Embeddings, Similarity
from emberge_train.losses.binary_cross_entropy import BinaryCrossEntropy

LN3 = math.log(3)  # whose sigmoid is 3/4
NAN = math.nan


def scored(positive: float, negative: float, **more: object) -> Embeddings:
    """A row with a positive and a negative, by a reranker's scores of them."""
    return Embeddings(
        anchor=torch.ones(1, 1),
        positive=torch.tensor([[[positive]]]),
        negative=torch.tensor([[[negative]]]),
        valid=torch.tensor([[True, True]]),
        text_id=torch.arange(3)[None],
        similarity=Similarity("pair_score", unit=False),
        **more,  # type: ignore[arg-type]
    )


def value(embeddings: Embeddings, **options: float) -> float:
    return float(BinaryCrossEntropy(**options)(embeddings, {}))


def test_a_positive_fits_and_a_negative_does_not() -> None:
    """3/4 of the positive's probability is right, and 1/2 of the negative's."""
    assert value(scored(LN3, 0)) == pytest.approx(-(math.log(3 / 4) + math.log(1 / 2)) / 2)
    assert value(scored(0, LN3)) == pytest.approx(-(math.log(1 / 2) + math.log(1 / 4)) / 2)


def test_a_score_in_the_data_takes_the_place_of_fitting_or_not() -> None:
    half = scored(0, LN3, negative_score=torch.tensor([[0.5]]))
    negative = (math.log(3 / 4) + math.log(1 / 4)) / 2
    assert value(half) == pytest.approx(-(math.log(1 / 2) + negative) / 2)
    lacking = scored(0, LN3, negative_score=torch.tensor([[NAN]]))
    assert value(lacking) == pytest.approx(value(scored(0, LN3)))


def test_the_weight_of_positives_is_not_that_of_negatives() -> None:
    weighted = -(5 * math.log(3 / 4) + math.log(1 / 2)) / 2
    assert value(scored(LN3, 0), positive_weight=5) == pytest.approx(weighted)


def test_scores_are_multiplied_by_the_scale() -> None:
    assert value(scored(LN3 / 20, 0), scale=20) == pytest.approx(value(scored(LN3, 0)))


def test_texts_that_a_row_lacks_do_not_count() -> None:
    lacking = dataclasses.replace(scored(LN3, 7), valid=torch.tensor([[True, False]]))
    assert value(lacking) == pytest.approx(-math.log(3 / 4))
