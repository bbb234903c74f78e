"""Lists of nearest rows are those of a stable sort of all cosines, and their measures those done by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emberge.numerics import ndcg, nearest_rows, rank_discounts, row_cosines, top_k, unit_rows
from numpy.typing import NDArray


def random_rows(rows: int, seed: int, width: int = 8) -> NDArray[Any]:
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


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


def test_row_cosines_compare_row_by_row() -> None:
    found = row_cosines(np.array([[2.0, 0], [1, 1], [0, 0]]), np.array([[0.0, 3], [5, 5], [1, 0]]))
    assert found.tolist() == pytest.approx([0, 1, 0])


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


def test_nearest_of_equals_is_the_earlier() -> None:
    rows = np.repeat(np.eye(24, dtype=np.float32)[:3], 5, axis=0)
    found = nearest_rows(rows, rows, 10)
    assert (found.shape, found.dtype) == ((15, 10), np.int64)
    assert found[0, :4].tolist() == [0, 1, 2, 3]
    assert found[7, :4].tolist() == [5, 6, 7, 8]
    assert nearest_rows(rows[:2], rows[:4], 10).shape == (2, 4)


@pytest.mark.parametrize("cells", [1, 90, 900, 36 * 90, 37 * 90, 4 << 20])
def test_queries_are_compared_in_pieces_with_the_same_result(
    cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 37 queries: one at a time, two pieces of which the second is a single one, or all at once."""
    queries, rows = random_rows(37, 1), random_rows(90, 2)
    exact = unit_rows(queries.astype(np.float64)) @ unit_rows(rows.astype(np.float64)).T
    monkeypatch.setattr("emberge.numerics.nearest._CELLS", cells)
    for count in (5, 90, 200):
        found = nearest_rows(queries, rows, count)
        assert found.shape == (37, min(count, 90))
        assert found.tolist() == np.argsort(-exact, axis=1)[:, :count].tolist()


def test_ndcg_counts_grades_by_rank_against_the_best_order() -> None:
    nearest = np.array([[5, 1, 2], [7, 8, 9], [3, 4, 6], [3, 4, 6]])
    grades = [{1: 1}, {1: 1, 2: 1}, {3: 1, 6: 3}, {3: 0, 4: -2}]
    third = (1 + 3 / np.log2(4)) / (3 + 1 / np.log2(3))
    assert ndcg(nearest, grades) == pytest.approx((1 / np.log2(3) + 0 + third + 0) / 4)
    assert ndcg(nearest[:1], [dict.fromkeys(range(9), 1)]) == 1.0
    assert rank_discounts(3).tolist() == pytest.approx([1, 1 / np.log2(3), 0.5])
