"""Fitted maps equal plain numpy in float64, and folds keep a text out of the map that measures it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emberge_index.translation.folds import FOLDS, few_texts, fit_folds, folds_of
from emberge_index.translation.maps import Kind, Map, Moments, fit_map
from numpy.typing import NDArray

EXACT = 1e-9
Pair = tuple[NDArray[Any], NDArray[Any]]


def pair(rows: int = 200, source: int = 12, target: int = 12, noise: float = 0.1) -> Pair:
    """Vectors with means, and others that are nearly an affine map of them."""
    draw = np.random.default_rng(1)
    x = draw.normal(size=(rows, source)) + draw.normal(size=source)
    matrix = draw.normal(size=(source, target)) / np.sqrt(source)
    return x, x @ matrix + 2 + noise * draw.normal(size=(rows, target))


def assert_same(found: NDArray[Any], wanted: NDArray[Any]) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=EXACT)


def centred(x: NDArray[Any], y: NDArray[Any]) -> Pair:
    return x - x.mean(0), y - y.mean(0)


def stacked(x: NDArray[Any], y: NDArray[Any], ridge: float) -> Pair:
    """The rows of a ridge regression towards the target: those given and one for each dimension."""
    cx, cy = centred(x, y)
    penalty = ridge * (cx**2).sum() / x.shape[1]
    target = np.eye(x.shape[1]) if x.shape[1] == y.shape[1] else np.zeros((x.shape[1], y.shape[1]))
    root = np.sqrt(penalty) * np.eye(x.shape[1])
    return np.vstack([cx, root]), np.vstack([cy, root @ target])


@pytest.mark.parametrize("target", [12, 7, 20])
@pytest.mark.parametrize("ridge", [0.0, 0.03, 4.0])
def test_affine_is_least_squares_with_a_row_a_dimension_for_the_ridge(
    target: int, ridge: float
) -> None:
    x, y = pair(target=target)
    matrix = np.linalg.lstsq(*stacked(x, y, ridge), rcond=None)[0]
    found = fit_map(Moments.of(x, y), "affine", ridge=ridge)
    assert_same(found.matrix, matrix)
    assert_same(found.offset, y.mean(0) - x.mean(0) @ matrix)


def test_a_ridge_leads_to_the_identity_or_to_zero() -> None:
    for target, limit in ((12, np.eye(12)), (7, np.zeros((12, 7)))):
        found = fit_map(Moments.of(*pair(target=target)), "affine", ridge=1e12)
        assert_same(found.matrix, limit)


def test_orthogonal_is_procrustes() -> None:
    from scipy.linalg import orthogonal_procrustes

    x, y = pair()
    found = fit_map(Moments.of(x, y), "orthogonal")
    assert_same(found.matrix, orthogonal_procrustes(*centred(x, y))[0])
    assert_same(found.matrix @ found.matrix.T, np.eye(12))


def test_orthogonal_keeps_lengths_into_more_dimensions() -> None:
    found = fit_map(Moments.of(*pair(target=20)), "orthogonal")
    assert_same(found.matrix @ found.matrix.T, np.eye(12))


def test_shift_is_the_difference_of_the_means() -> None:
    x, y = pair()
    found = fit_map(Moments.of(x, y), "shift")
    assert_same(found(x), x + (y - x).mean(0))


@pytest.mark.parametrize("target", [12, 7])
@pytest.mark.parametrize("rank", [1, 3])
def test_low_rank_is_the_best_of_its_rank(rank: int, target: int) -> None:
    """By Eckart and Young: the fitted values of the full regression, cut to their first axes."""
    x, y = pair(target=target, noise=0.5)
    rows, wanted = stacked(x, y, 0.03)
    start = np.eye(12) if target == 12 else np.zeros((12, target))
    full = np.linalg.lstsq(rows, wanted - rows @ start, rcond=None)[0]
    _, _, axes = np.linalg.svd(rows @ full, full_matrices=False)
    found = fit_map(Moments.of(x, y), "low_rank", ridge=0.03, rank=rank)
    assert_same(found.matrix, start + full @ axes[:rank].T @ axes[:rank])
    assert np.linalg.matrix_rank(found.matrix - start, tol=1e-9) == rank


def test_a_rotation_is_found_exactly() -> None:
    x, _ = pair()
    rotation = np.linalg.qr(np.random.default_rng(2).normal(size=(12, 12)))[0]
    y = (x - 1) @ rotation + 3
    kinds: list[tuple[Kind, float]] = [("orthogonal", 0.0), ("affine", 0.0)]
    for kind, ridge in kinds:
        assert_same(fit_map(Moments.of(x, y), kind, ridge=ridge)(x), y)


def test_sums_of_parts_are_those_of_the_whole_and_give_its_error() -> None:
    x, y = pair()
    sums = Moments.of(x[:50], y[:50]) + Moments.of(x[50:], y[50:])
    fitted = fit_map(sums, "affine", ridge=0.1)
    assert_same(fitted.matrix, fit_map(Moments.of(x, y), "affine", ridge=0.1).matrix)
    assert sums.squared_error(fitted) == pytest.approx(((fitted(x) - y) ** 2).sum(), rel=EXACT)
    still = Map(np.eye(12), np.zeros(12))
    assert sums.squared_error(still) == pytest.approx(((x - y) ** 2).sum(), rel=EXACT)


def test_sums_are_those_of_float64_whatever_the_vectors_are() -> None:
    draw = np.random.default_rng(5)
    x, y = ((1e3 + draw.normal(size=(500, 12))).astype(np.float32) for _ in range(2))
    found, wanted = Moments.of(x, y), Moments.of(x.astype(np.float64), y.astype(np.float64))
    for name in ("x", "y", "xx", "xy", "yy"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
    assert found.count == 500
    assert found.variance == pytest.approx(((x - x.mean(0, np.float64)) ** 2).sum() / 12, rel=1e-6)


def test_each_text_is_measured_by_a_map_that_has_not_seen_it() -> None:
    x, y = (side.astype(np.float32) for side in pair())
    folds = folds_of([f"text {row}" for row in range(len(x))])
    found = fit_folds(x, y, folds, "affine", ridge=0.1)
    for fold in range(FOLDS):
        seen = folds != fold
        fitted = fit_map(Moments.of(x[seen], y[seen]), "affine", ridge=0.1)
        assert_same(found.out_of_fold[~seen], fitted(x[~seen]).astype(np.float32))


def test_equal_texts_share_a_fold_and_the_folds_are_alike() -> None:
    texts = [f"text {row % 500}" for row in range(1000)]
    folds = folds_of(texts)
    assert (folds[:500] == folds[500:]).all()
    assert set(folds) == set(range(FOLDS))
    assert (folds_of(texts[::-1]) == folds[::-1]).all()


def test_the_ridge_that_is_chosen_fits_unseen_texts_best() -> None:
    """Noise wants a ridge, exact vectors none, and vectors that did not change the largest."""
    x, y = pair(rows=60, noise=2.0)
    folds = folds_of([str(row) for row in range(60)])
    noisy = fit_folds(x, y, folds, "affine").ridge
    exact = fit_folds(x, x @ np.diag(np.arange(1, 13)), folds, "affine").ridge
    still = fit_folds(
        x, x + 1e-2 * np.random.default_rng(3).normal(size=x.shape), folds, "affine"
    ).ridge
    assert exact is not None
    assert noisy is not None
    assert still is not None
    assert exact < noisy < still


@pytest.mark.parametrize(
    ("count", "kind", "ridge", "fits"),
    [
        (100, "affine", 0, False),
        (130, "affine", 0, True),
        (100, "orthogonal", "auto", False),
        (100, "affine", "auto", True),
        (100, "shift", "auto", True),
        (4, "shift", "auto", False),
        (5, "added_layer", 0.0, True),
        (4, "added_layer", 0.0, False),
    ],
)
def test_fewer_texts_than_numbers_need_a_ridge(
    count: int, kind: Kind, ridge: Any, fits: bool
) -> None:
    problem = few_texts(count, 100, kind, ridge)
    assert (problem is None) == fits
    assert fits or "more texts" in str(problem)
