"""Random orders that are computed place by place are as random as sorted ones."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest
from emberge import shuffled
from emberge.training.plan.lazy_rows import TABLE_SIZE, Network, Permutation
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

LARGE = TABLE_SIZE + 1234


def whole(order: Permutation | Network, size: int) -> np.ndarray:
    return order.take(np.arange(size, dtype=np.int64))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**63 - 1))
def test_every_number_stands_once(size: int, seed: int) -> None:
    for order in (Permutation(size, seed), Network(size, seed)):
        assert np.array_equal(np.sort(whole(order, size)), np.arange(size))


@pytest.mark.parametrize("size", [LARGE, 99_856, 99_857, 1 << 18])
def test_every_number_stands_once_in_long_orders(size: int) -> None:
    assert np.array_equal(np.sort(whole(Permutation(size, 5), size)), np.arange(size))


def test_short_orders_are_those_of_sorted_words() -> None:
    assert np.array_equal(whole(Permutation(1000, 3), 1000), shuffled(1000, 3))
    assert np.array_equal(whole(Permutation(TABLE_SIZE, 3), TABLE_SIZE), shuffled(TABLE_SIZE, 3))


@given(st.integers(0, LARGE - 1), st.integers(0, 20))
def test_a_place_is_known_without_the_others(place: int, seed: int) -> None:
    order = Permutation(LARGE, seed)
    assert order[place] == order.part(place, place + 5)[0] == Permutation(LARGE, seed)[place]


def test_places_beyond_the_end_are_none() -> None:
    with pytest.raises(IndexError, match="place 3 of 3"):
        Permutation(3, 0)[3]
    assert len(Permutation(LARGE, 0).part(LARGE - 2, LARGE + 9)) == 2


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_orders_of_a_few_are_as_likely(size: int) -> None:
    """Chi-square over all orders, odd and even ones; 1 of 10,000 fair generators would fail it."""
    draws = 30 * math.factorial(size) + 300
    for kind in (Permutation, functools.partial(Network, rounds=16)):
        orders = dict.fromkeys(itertools.permutations(range(size)), 0)
        for seed in range(draws):
            orders[tuple(whole(kind(size, seed), size).tolist())] += 1
        assert stats.chisquare(list(orders.values())).pvalue > 1e-4


@pytest.mark.parametrize("size", [16, 81])
def test_every_number_is_as_likely_at_every_place(size: int) -> None:
    counts = np.zeros((size, size))
    for seed in range(2000):
        counts[np.arange(size), whole(Network(size, seed), size)] += 1
    # With both margins fixed: variance (1 - 1/n)/n a cell, so scaled by (n - 1)/n it has (n - 1)² degrees.
    statistic = float(((counts - 2000 / size) ** 2 / (2000 / size)).sum()) * (size - 1) / size
    assert 1e-4 < stats.chi2.sf(statistic, (size - 1) ** 2) < 1 - 1e-4


def test_neighbours_lie_anywhere_in_long_orders() -> None:
    found = whole(Permutation(LARGE, 11), LARGE)
    cells = np.histogram2d(found[:-1], found[1:], bins=32)[0]
    assert stats.chisquare(cells.ravel()).pvalue > 1e-4
    steps = np.abs(np.diff(found.astype(float))).mean()
    assert steps == pytest.approx(LARGE / 3, rel=0.02)
    in_place = int((found == np.arange(LARGE)).sum())
    assert in_place < 10  # Poisson with mean 1


def test_the_first_batches_are_spread_over_the_data() -> None:
    counts = np.zeros(64)
    for seed in range(200):
        first = Permutation(10**9, seed).part(0, 64)
        counts += np.bincount(first // (10**9 // 64 + 1), minlength=64)
    assert stats.chisquare(counts).pvalue > 1e-4


def test_seeds_give_independent_orders() -> None:
    orders = [whole(Permutation(LARGE, seed), LARGE).astype(float) for seed in range(12)]
    found = np.corrcoef(orders)[np.triu_indices(12, 1)]
    # Rank correlations of independent orders: standard deviation 1 / sqrt(n - 1).
    assert np.abs(found).max() < 5 / np.sqrt(LARGE - 1)
    same = [(a == b).sum() for a, b in itertools.combinations(orders, 2)]
    assert stats.poisson.sf(sum(same) - 1, len(same)) > 1e-4
    assert stats.poisson.cdf(sum(same), len(same)) > 1e-4
