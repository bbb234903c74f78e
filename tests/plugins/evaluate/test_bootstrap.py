"""The paired bootstrap against libraries' own statistics on the very draws, and against known answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emberge import Units, make_seed
from emberge_evaluate import bootstrap
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score

RNG = np.random.default_rng(0)


def _drawn(seed: int, name: str, units: int, resamples: int) -> list[np.ndarray]:
    """Unit numbers of each draw, recovered from the counts that the module draws."""
    rng = np.random.default_rng(make_seed(seed, name))
    counts = np.concatenate(list(bootstrap._draw_counts(rng, units, resamples))).astype(int)
    return [np.repeat(np.arange(units), row) for row in counts]


def test_mean_is_the_mean_of_the_drawn_units() -> None:
    values = RNG.random(31)
    samples = bootstrap.resample([Units("query", "mean", values)], resamples=7, seed=1, name="t")
    expected = [values[rows].mean() for rows in _drawn(1, "t", 31, 7)]
    np.testing.assert_allclose(samples[0], expected, rtol=1e-12)


def test_a_ratio_is_that_of_the_drawn_sums() -> None:
    values, gold = RNG.random(23), RNG.integers(1, 9, 23).astype(float)
    units = Units("text", "ratio", values, gold)
    samples = bootstrap.resample([units], resamples=9, seed=2, name="t")
    expected = [values[r].sum() / gold[r].sum() for r in _drawn(2, "t", 23, 9)]
    np.testing.assert_allclose(samples[0], expected, rtol=1e-12)
    assert bootstrap.compute_statistic(Units("text", "ratio", [2.0, 6.0], [1.0, 3.0])) == 2.0


def test_a_draw_that_weighs_nothing_has_the_ratio_of_all_units() -> None:
    units = Units("text", "ratio", [0.0, 3.0], [0.0, 2.0])
    samples = bootstrap.resample([units], resamples=40, seed=0, name="t")
    assert set(samples[0]) == {1.5}


def test_spearman_with_ties_is_scipys_on_every_draw() -> None:
    gold = RNG.integers(0, 6, 57).astype(float)
    values = np.round(RNG.random(57) + gold / 6, 1)
    samples = bootstrap.resample(
        [Units("pair", "spearman", values, gold)], resamples=25, seed=3, name="sts"
    )
    expected = [spearmanr(values[r], gold[r])[0] for r in _drawn(3, "sts", 57, 25)]
    np.testing.assert_allclose(samples[0], expected, atol=1e-12)


def test_average_precision_with_ties_is_sklearns_on_every_draw() -> None:
    gold = RNG.integers(0, 2, 64).astype(float)
    values = np.round(RNG.random(64) + gold / 3, 1)
    samples = bootstrap.resample(
        [Units("pair", "average_precision", values, gold)], resamples=25, seed=5, name="pairs"
    )
    expected = [average_precision_score(gold[r], values[r]) for r in _drawn(5, "pairs", 64, 25)]
    np.testing.assert_allclose(samples[0], expected, atol=1e-12)


def test_many_draws_in_pieces_are_the_same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    units = [Units("query", "mean", RNG.random(40))]
    whole = bootstrap.resample(units, resamples=50, seed=0, name="t")
    monkeypatch.setattr(bootstrap, "_CELLS_AT_ONCE", 120)
    pieces = bootstrap.resample(units, resamples=50, seed=0, name="t")
    np.testing.assert_allclose(whole, pieces, rtol=1e-14)


def test_models_share_their_draws_so_equal_gains_have_no_spread() -> None:
    values = RNG.random(50)
    units = [Units("query", "mean", values), Units("query", "mean", values + 0.25)]
    samples = bootstrap.resample(units, resamples=200, seed=0, name="t")
    assert samples[0].std() > 0.01
    np.testing.assert_allclose(samples[1] - samples[0], 0.25, atol=1e-12)


def test_every_group_counts_alike_however_many_units_it_has() -> None:
    """Means of 1, 4 and 10, though the third has three units of six."""
    units = Units("text", "mean", [1, 1, 4, 10, 10, 10], groups=["a", "a", "b", "c", "c", "c"])
    assert bootstrap.compute_statistic(units) == pytest.approx(5.0)
    samples = bootstrap.resample([units], resamples=4, seed=0, name="t")
    np.testing.assert_allclose(samples, 5.0)
    units = Units("text", "mean", [1.0] * 3 + [0.0] * 30, groups=[0] * 3 + [1] * 30)
    assert bootstrap.compute_statistic(units) == pytest.approx(0.5)
    np.testing.assert_allclose(bootstrap.resample([units], resamples=20, seed=0, name="t"), 0.5)


def test_a_constant_prediction_correlates_with_nothing() -> None:
    units = Units("pair", "spearman", [0.5] * 8, list(range(8)))
    assert bootstrap.compute_statistic(units) == 0.0


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    truth, hits = 0.3, 0
    for trial in range(200):
        values = (np.random.default_rng(trial).random(120) < truth).astype(float)
        samples = bootstrap.resample(
            [Units("query", "mean", values)], resamples=300, seed=trial, name="t"
        )
        low, high = bootstrap.compute_interval(samples[0])
        hits += low <= truth <= high
    assert 0.9 <= hits / 200 <= 0.99


def test_lower_bound_is_one_sided() -> None:
    samples = np.linspace(0.0, 1.0, 1001)
    assert bootstrap.compute_lower_bound(samples) == pytest.approx(0.05)
    assert bootstrap.compute_interval(samples) == pytest.approx((0.025, 0.975))


def test_tasks_without_units_are_drawn_whole() -> None:
    scores = np.array([[0.2, 0.4, 0.9], [0.3, 0.5, 1.0]])
    samples = bootstrap.resample_tasks(scores, resamples=400, seed=0, name="clustering")
    assert set(np.round(samples[0], 6)) <= {
        round((a + b + c) / 3, 6) for a in scores[0] for b in scores[0] for c in scores[0]
    }
    np.testing.assert_allclose(samples[1] - samples[0], 0.1, atol=1e-12)


def test_seed_and_name_say_which_units_and_tasks_are_drawn() -> None:
    scores, units = RNG.random((1, 9)), [Units("query", "mean", RNG.random(9))]
    for draw, given in ((bootstrap.resample_tasks, scores), (bootstrap.resample, units)):

        def drawn(seed: int, name: str, draw: Any = draw, given: Any = given) -> bytes:
            found: bytes = draw(given, resamples=20, seed=seed, name=name).tobytes()
            return found

        assert drawn(0, "a") == drawn(0, "a")
        assert len({drawn(0, "a"), drawn(1, "a"), drawn(0, "b")}) == 3
