"""Rows are scaled to length one, and the highest scores are those of a stable sort."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emberge.numerics import top_k, unit_rows


@pytest.mark.parametrize(
    ("given", "kept"),
    [(np.float16, np.float32), (np.float32, np.float32), (np.float64, np.float64)],
)
def test_unit_rows_have_length_one_in_their_own_precision_and_zeros_stay(
    given: Any, kept: Any
) -> None:
    rows = np.array([[3, 4], [0, 0], [-1e-3, 0]], given)
    found = unit_rows(rows)
    assert found.dtype == kept
    np.testing.assert_allclose(found, [[0.6, 0.8], [0, 0], [-1, 0]], rtol=1e-6)


@pytest.mark.parametrize("levels", [2, 5, 10_000])
@pytest.mark.parametrize("count", [1, 3, 10, 29, 30, 31])
def test_the_highest_are_those_of_a_stable_sort_however_many_are_equal(
    levels: int, count: int
) -> None:
    scores = np.random.default_rng(levels).integers(0, levels, (50, 30)).astype(np.float32)
    wanted = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    assert top_k(scores, count).tolist() == wanted.tolist()


def test_nan_and_minus_infinity_are_the_last() -> None:
    scores = np.array([[np.nan, 1, -np.inf, 2], [0, np.nan, np.nan, np.nan]])
    assert top_k(scores, 2).tolist() == [[3, 1], [0, 1]]
    assert top_k(scores[:1], 3).tolist() == [[3, 1, 2]]
