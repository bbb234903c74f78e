"""First documents of queries, and ties, in scores of weightings."""

from __future__ import annotations

import numpy as np
import pytest
from emberge_weights.judged_sets import JudgedSet
from emberge_weights.members import SetVectors
from emberge_weights.set_scores import find_first_documents, score_set


def test_nearest_documents_are_found_across_blocks_of_a_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("emberge_weights.set_scores.SEARCHED_DOCUMENTS", 7)
    monkeypatch.setattr("emberge_weights.set_scores.DEPTH", 5)
    rng = np.random.default_rng(0)
    texts = [f"text {number}" for number in range(20)]
    wanted = JudgedSet("set", "mean", texts[:3], texts)
    vectors = rng.standard_normal((20, 4)).astype(np.float32)
    queries = rng.standard_normal((3, 4)).astype(np.float32)
    found = find_first_documents(wanted, [SetVectors(queries, vectors)], np.ones(1))
    cosines = queries @ (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).T
    np.testing.assert_array_equal(found, np.argsort(-cosines, axis=1)[:, :5])
    assert (found >= 14).any()


def test_equal_cosines_are_ranked_as_in_the_mean_over_their_orders() -> None:
    texts = [f"text {number}" for number in range(24)]
    relevant = [{0: 1}, {0: 1, 3: 2}]
    one = JudgedSet("set", "mean", texts[:2], texts, relevant)
    vectors = np.ones((24, 4), np.float32)
    vectors[12:, 0] = -1  # the others come last
    sides = SetVectors(np.ones((2, 4), np.float32), vectors)
    discounts = 1 / np.log2(np.arange(2, 12))
    mean = discounts.sum() / 12
    found = score_set(one, [sides], np.ones((1, 1)), np.ones((1, 1))).values[0]
    assert found == pytest.approx([mean, 3 * mean / (2 + discounts[1])], abs=1e-5)
