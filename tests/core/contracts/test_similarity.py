"""Vectors are compared by their cosine or product, and sums in blocks are those of the whole table."""

from __future__ import annotations

import pytest
import torch
from emberge import Similarity

from tests.support.similarities import assert_block_sums


def test_cosines_and_products_are_told_apart() -> None:
    left, right = torch.tensor([[3.0, 4.0]]), torch.tensor([[[6.0, 8.0], [-4.0, 3.0]]])
    cosine, product = Similarity(), Similarity("sparse", unit=False)
    assert cosine.own_scores(cosine.prepared(left), cosine.prepared(right)).tolist() == [[1.0, 0.0]]
    assert product.own_scores(product.prepared(left), right).tolist() == [[50.0, 0.0]]
    assert product.table(left, right[0]).tolist() == [[50.0, 0.0]]


@pytest.mark.parametrize("similarity", [Similarity(), Similarity("sparse", unit=False)])
def test_sums_in_blocks_are_the_sums_of_the_table(
    similarity: Similarity, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_block_sums(similarity, torch.randn(6, 4), torch.randn(5, 4), monkeypatch)
