"""FLOPS: its numbers by hand, and its growth in the first part of a training."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from emberge import Embeddings
from emberge_train.losses.flops import FLOPS

# Two rows with a positive and a negative each; the second row lacks its negative.
BATCH = Embeddings(
    anchor=torch.tensor([[1.0, 0.0], [3.0, 2.0]]),
    positive=torch.tensor([[[2.0, 0.0]], [[0.0, 4.0]]]),
    negative=torch.tensor([[[0.0, 2.0]], [[9.0, 9.0]]]),
    valid=torch.tensor([[True, True], [True, False]]),
    text_id=torch.arange(6).view(2, 3),
)
# Mean weights: of three documents 2/3 and 2, of two queries 2 and 1.
DOCUMENTS, QUERIES = (2 / 3) ** 2 + 2**2, 2**2 + 1**2


def test_documents_and_queries_count_by_their_factors() -> None:
    loss = FLOPS(documents=0.9, queries=0.1)
    assert float(loss(BATCH, {})) == pytest.approx(0.9 * DOCUMENTS + 0.1 * QUERIES)
    alone = FLOPS(documents=0.9, queries=0)
    assert float(alone(BATCH, {})) == pytest.approx(0.9 * DOCUMENTS)


def test_weights_count_by_their_size_whatever_their_sign() -> None:
    """Weights of 2 and -2 cost a search as much as two of 2."""
    opposed = dataclasses.replace(BATCH, positive=torch.tensor([[[-2.0, 0.0]], [[0.0, -4.0]]]))
    loss = FLOPS(documents=0.9, queries=0.1)
    assert float(loss(opposed, {})) == pytest.approx(float(loss(BATCH, {})))


@pytest.mark.parametrize(
    ("progress", "share"), [(0.0, 0.0), (1 / 6, 0.25), (1 / 3, 1.0), (0.9, 1.0)]
)
def test_it_grows_with_the_square_of_the_step_for_a_third_of_them(
    progress: float, share: float
) -> None:
    loss = FLOPS(documents=1, queries=1)
    value = loss(dataclasses.replace(BATCH, progress=progress), {})
    assert float(value) == pytest.approx(share * (DOCUMENTS + QUERIES))
