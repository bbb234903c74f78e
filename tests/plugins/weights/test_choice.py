"""The choice: contributions to scores, held-out gains, and equal weights where there is nothing to find."""

from __future__ import annotations

import numpy as np
import pytest
from emberge import Units
from emberge_evaluate import compute_statistic, resample
from emberge_weights.candidates import EQUAL_CANDIDATE, draw_candidates
from emberge_weights.judged_sets import Statistic
from emberge_weights.real_merges import RealMerges, pick_merges
from emberge_weights.search import Search, choose_simplest, choose_weighting, find_cautious
from emberge_weights.unit_scores import UnitScores
from numpy.typing import NDArray

STATISTICS: tuple[Statistic, ...] = ("mean", "spearman")


def drawn(
    seed: int, kind: Statistic, *, units: int = 120, signal: float = 0.0
) -> tuple[NDArray[np.float64], list[UnitScores]]:
    """Weightings of three members and a base, and their scores; only member 0 knows the labels."""
    rng = np.random.default_rng(seed)
    weights = draw_candidates(3, True, 60, seed)
    left = rng.standard_normal((4, units, 8))
    right = 0.5 * left + rng.standard_normal((4, units, 8))
    gold = rng.standard_normal(units)
    a, b = (np.einsum("cm,mnd->cnd", weights, side) for side in (left, right))
    cosines = (a * b).sum(2) / np.linalg.norm(a, axis=2) / np.linalg.norm(b, axis=2)
    cosines += signal * weights[:, :1] * gold
    if kind == "mean":
        # Scores of queries: what a member adds to each is chance.
        values = weights @ (rng.standard_normal((4, units)) + signal * np.eye(4)[0][:, None])
        return weights, [UnitScores("set", "mean", "query", values.astype(np.float32))]
    return weights, [UnitScores("set", kind, "pair", cosines.astype(np.float32), gold)]


@pytest.mark.parametrize("kind", STATISTICS)
def test_weights_are_equal_where_labels_are_chance(kind: Statistic) -> None:
    found = [choose_weighting(*drawn(seed, kind), seed).index for seed in range(40)]
    # Of 40 draws one may err by chance; of these none does.
    assert found == [EQUAL_CANDIDATE] * 40


@pytest.mark.parametrize("kind", STATISTICS)
def test_a_member_that_alone_knows_the_labels_gets_more(kind: Statistic) -> None:
    weights, scores = drawn(3, kind, units=400, signal=2.0)
    choice = choose_weighting(weights, scores, 3)
    assert choice.gain.is_clear
    assert weights[choice.index][0] > 0.5


@pytest.mark.parametrize(
    ("gain", "weighting"), [(1.0, [0.3, 0.3, 0.3, 0.1]), (0.0, [1 / 6] * 3 + [0.5])]
)
def test_the_base_gets_a_half_where_equal_weights_do_not_gain_over_it(
    gain: float, weighting: list[float]
) -> None:
    rng = np.random.default_rng(7)
    weights = draw_candidates(3, True, 60, 7, base_share=0.1)
    values = weights @ (3 + 0.5 * rng.standard_normal((4, 200)))
    # No weighting is better than equal weights.
    values += gain * np.minimum(1 - weights[:, 3:], 0.9)
    scores = [UnitScores("set", "mean", "query", values.astype(np.float32))]
    choice = choose_weighting(weights, scores, 7, find_cautious(weights))
    assert not choice.gain.is_clear
    assert choice.over_base is not None
    assert choice.over_base.is_clear == bool(gain)
    assert weights[choice.index].tolist() == pytest.approx(weighting)


def test_a_merge_with_half_the_base_is_taken_by_its_real_scores_too() -> None:
    weights = draw_candidates(2, True, 40, 1, base_share=0.1)
    half = find_cautious(weights)
    values = np.full((40, 50), 0.5, np.float32)
    scores = [UnitScores("set", "mean", "query", values)]
    found = Search(weights, scores, choose_weighting(weights, scores, 1, half))
    picked = pick_merges(found)
    assert picked[:2] == [EQUAL_CANDIDATE, half]
    merged = [UnitScores("set", "mean", "query", values[picked])]
    assert RealMerges(picked, merged).choose_final(found) == half


@pytest.mark.parametrize("kind", STATISTICS)
def test_contributions_add_up_to_the_score_and_spread_as_a_bootstrap_does(kind: Statistic) -> None:
    _, (one,) = drawn(5, kind, units=300, signal=0.3)
    found = one.compute_contributions()
    for row in (0, 1, 7):
        gold = None if one.gold is None else one.gold.tolist()
        units = Units("pair", kind, one.values[row].astype(float).tolist(), gold)
        assert found[row].mean() == pytest.approx(compute_statistic(units), abs=1e-9)
        draws = resample([units], resamples=2000, seed=1, name="set")[0]
        error = found[row].std() / len(one) ** 0.5
        # A spread from 2,000 draws is within 5 % nineteen times in twenty; the rest is curvature.
        assert error == pytest.approx(draws.std(), rel=0.15)


def test_of_weightings_as_good_as_the_best_the_one_nearest_to_equal_is_taken() -> None:
    weights = np.array([[0.5, 0.5], [1.0, 0.0], [0.6, 0.4], [0.9, 0.1]])
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(100) * 0.01
    means = np.array([0.5, 0.8, 0.799, 0.6])
    wobble = 0.1 * rng.standard_normal((4, 100))
    assert (
        choose_simplest(weights, [means[:, None] + noise + wobble - wobble.mean(1, keepdims=True)])
        == 2
    )
    assert choose_simplest(weights, [np.tile(means[:, None], 100)]) == 1
