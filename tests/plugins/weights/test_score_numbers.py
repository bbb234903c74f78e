"""Scores of weightings against plain numpy: products, rankings, and errors of means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from emberge_weights import set_scores
from emberge_weights.candidates import (
    CONCENTRATIONS,
    EQUAL_CANDIDATE,
    draw_candidates,
    list_fixed_candidates,
    measure_distance_from_equal,
)
from emberge_weights.judged_sets import JudgedSet
from emberge_weights.members import SetVectors
from emberge_weights.real_merges import RealMerges, pick_merges
from emberge_weights.search import (
    CHOSEN_ERROR,
    ChosenWeighting,
    HeldOut,
    Search,
    choose_weighting,
    compare_pair,
    measure_held_out,
    search_weights,
)
from emberge_weights.set_scores import (
    expand_quadratic,
    find_first_documents,
    score_set,
    yield_products,
)
from emberge_weights.unit_scores import UnitScores, compute_mean_score, compute_standard_error
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def vectors(seed: int, rows: int, width: int = 5) -> Floats:
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


def members(queries: int, documents: int, count: int = 3) -> list[SetVectors]:
    return [SetVectors(vectors(n, queries), vectors(50 + n, documents)) for n in range(count)]


WEIGHTS = np.array([[1, 0, 0], [0.5, 0.25, 0.25], [0.1, 0.7, 0.2], [0, 0, 1], [0.3, 0.3, 0.4]])


def cosines_of(sides: Sequence[SetVectors], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The cosines [queries, documents] of embeddings that are mixed by the weights."""
    queries, documents = (
        sum(w * part[:].astype(np.float64) for w, part in zip(weights, parts, strict=True))
        for parts in ([s.queries for s in sides], [s.documents for s in sides])
    )
    lengths = [np.linalg.norm(one, axis=1) for one in (queries, documents)]
    found: NDArray[np.float64] = queries @ documents.T / np.outer(*lengths)
    return found


def test_products_give_the_cosines_of_mixtures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(set_scores, "GATHERED_NUMBERS", 200)
    sides = members(7, 9)
    documents = np.random.default_rng(0).integers(0, 9, (7, 4))
    sizes = list[int]()
    for part, products in yield_products(sides, documents):
        found = products.compute_cosines(expand_quadratic(WEIGHTS)).numpy()
        for row, weights in zip(found, WEIGHTS, strict=True):
            expected = np.take_along_axis(cosines_of(sides, weights)[part], documents[part], 1)
            np.testing.assert_allclose(row, expected, atol=1e-5)
        sizes.append(part.stop - part.start)
    assert sizes == [3, 3, 1]


def ranked(relevant: Sequence[Mapping[int, int]], documents: int) -> JudgedSet:
    queries = [f"q{n}" for n in range(len(relevant))]
    texts = [f"d{n}" for n in range(documents)]
    return JudgedSet("set", "mean", queries, texts, relevant)


def ndcg(cosines: NDArray[np.float64], judged: Mapping[int, int]) -> float:
    """nDCG@10 of one query by its definition."""
    order = np.argsort(-cosines)[:10]
    found = sum(max(0, judged.get(int(d), 0)) / np.log2(r + 2) for r, d in enumerate(order))
    best = sorted((max(0, g) for g in judged.values()), reverse=True)[:10]
    return float(found / max(1e-9, sum(g / np.log2(r + 2) for r, g in enumerate(best))))


@pytest.mark.parametrize(("documents", "cells"), [(6, 1), (30, 300)])
def test_ranked_sets_are_scored_by_ndcg(
    documents: int, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emberge_weights.set_scores.CELLS", cells)
    rng = np.random.default_rng(1)
    relevant: list[dict[int, int]] = [
        {int(d): int(rng.integers(-1, 4)) for d in rng.permutation(documents)[: 1 + query]}
        for query in range(5)
    ]
    relevant += [{0: 0}, dict.fromkeys(range(documents), 1)]
    one, sides = ranked(relevant, documents), members(7, documents)
    found = score_set(one, sides, WEIGHTS, np.eye(3))
    for row, weights in zip(found.values, WEIGHTS, strict=True):
        cosines = cosines_of(sides, weights)
        expected = [ndcg(*pair) for pair in zip(cosines, relevant, strict=True)]
        np.testing.assert_allclose(row, expected, atol=1e-5)


def test_only_pooled_and_judged_documents_are_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emberge_weights.set_scores.DEPTH", 2)
    # A document that no pool has is behind all others, even if the weighting puts it first.
    basis = np.eye(4, dtype=np.float32)
    sides = [SetVectors(basis[[0]] + 0.5 * basis[[1]], basis), SetVectors(basis[[3]], basis)]
    one = ranked([{2: 1}], 4)
    first = find_first_documents(one, sides, np.array([1.0, 0.0]))
    assert first.tolist()[0] == [0, 1]
    found = score_set(one, sides, np.eye(2), np.eye(2)[:1])
    assert found.values[0] == pytest.approx(0.5)


def test_pairs_are_scored_by_their_cosines() -> None:
    texts = [f"t{n}" for n in range(6)]
    gold = [0.1, 0.5, 0.2, 0.9, 0.4, 0.3]
    one = JudgedSet("likeness", "spearman", texts, texts[::-1], gold=gold)
    sides = members(6, 6)
    found = score_set(one, sides, WEIGHTS, np.eye(3))
    expected = [np.diag(cosines_of(sides, weights)) for weights in WEIGHTS]
    np.testing.assert_allclose(found.values, expected, atol=1e-5)


def test_nearest_documents_are_found_across_blocks_of_a_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("emberge_weights.set_scores.SEARCHED_DOCUMENTS", 7)
    monkeypatch.setattr("emberge_weights.set_scores.DEPTH", 5)
    sides = members(3, 20, 1)
    found = find_first_documents(ranked([{}] * 3, 20), sides, np.ones(1))
    expected = np.argsort(-cosines_of(sides, np.ones(1)), axis=1)[:, :5]
    np.testing.assert_array_equal(found, expected)
    assert (found >= 14).any()


def test_equal_cosines_are_ranked_as_in_the_mean_over_their_orders() -> None:
    one = ranked([{0: 1}, {0: 1, 3: 2}], 24)
    documents = np.ones((24, 4), np.float32)
    documents[12:, 0] = -1  # the others come last
    sides = SetVectors(np.ones((2, 4), np.float32), documents)
    discounts = 1 / np.log2(np.arange(2, 12))
    mean = discounts.sum() / 12
    found = score_set(one, [sides], np.ones((1, 1)), np.ones((1, 1))).values[0]
    assert found == pytest.approx([mean, 3 * mean / (2 + discounts[1])], abs=1e-5)


# ── units ───────────────────────────────────────────────────────────────────────────────────────


def test_equal_values_correlate_with_nothing() -> None:
    flat = UnitScores("s", "spearman", "pair", np.full((1, 4), 0.2, np.float32), np.arange(4.0))
    assert flat.compute_contributions().tolist() == [pytest.approx([0] * 4)]


def test_the_error_of_a_mean_over_sets_is_that_of_their_units() -> None:
    first, second = np.array([[1.0, 2, 3, 6]]), np.array([[0.0, 1]])
    assert compute_mean_score([first, second]).tolist() == [(3 + 0.5) / 2]
    expected = np.sqrt(3.5 / 3 + 0.25 / 1) / 2
    assert compute_standard_error([first, second]) == pytest.approx([expected])
    assert compute_standard_error([np.ones((1, 1))]).tolist() == [0]
    assert (HeldOut(1.75, 0.5).low, HeldOut(1.75, 0.5).high) == pytest.approx((0.77, 2.73))
    assert not HeldOut(1.96, 1.0).is_clear
    assert HeldOut(1.97, 1.0).is_clear


def test_a_rule_is_judged_on_units_that_it_has_not_seen() -> None:
    values = np.array([[0.0] * 6, [1, 1, 1, 1, 1, 1], [0, 3, 0, 3, 0, 3]], np.float32)
    one = UnitScores("s", "mean", "query", values)
    seen: list[int] = []

    def rule(known: Sequence[NDArray[np.float64]]) -> int:
        seen.append(known[0].shape[1])
        return 1

    found = measure_held_out([one, one], rule, 5)
    assert found.difference == pytest.approx(1)
    assert found.error == pytest.approx(0, abs=1e-12)
    assert seen == [3] * 20
    # Each unit is judged once in a halving: what the rule gains there is its gain over equal weights.
    spread = measure_held_out([one, one], lambda _: 2, 5)
    assert spread.difference == pytest.approx(1.5)
    assert CHOSEN_ERROR == 4 / 3
    assert spread.error == pytest.approx(4 / 3 * 1.5 / 5**0.5 / 2**0.5)
    assert compare_pair([one], [0, 2]).difference == 1.5
    assert compare_pair([one], [0, 2]).error == pytest.approx(1.5 / 5**0.5)


# ── candidates and merges ───────────────────────────────────────────────────────────────────────


def test_fixed_candidates_are_equal_weights_members_left_out_ones_and_steps_to_the_base() -> None:
    third, half = 1 / 3, 0.5
    expected = [
        [third, third, third, 0],
        *np.eye(4).tolist(),
        [0, half, half, 0],
        [half, 0, half, 0],
        [half, half, 0, 0],
        *([*[(1 - 0.1 * tenth) / 3] * 3, 0.1 * tenth] for tenth in range(1, 10)),
    ]
    np.testing.assert_allclose(list_fixed_candidates(3, True), expected)
    np.testing.assert_allclose(list_fixed_candidates(2, False), [[half, half], [1, 0], [0, 1]])
    shared = list_fixed_candidates(3, True, base_share=0.4)
    np.testing.assert_allclose(shared[0], [0.2, 0.2, 0.2, 0.4])
    np.testing.assert_allclose(shared[5], expected[0])
    np.testing.assert_allclose(np.delete(shared, 5, 0)[1:], expected[1:])
    np.testing.assert_allclose(list_fixed_candidates(3, False)[4:], np.array(expected)[5:8, :3])


def test_random_candidates_leave_a_member_out_or_have_a_share_of_the_base_in_turns() -> None:
    fixed = len(list_fixed_candidates(3, True))
    random = draw_candidates(3, True, fixed + 600, 2)[fixed:]
    assert len(random) == 600
    np.testing.assert_array_equal(draw_candidates(3, True, fixed + 600, 2)[fixed:], random)
    assert len(draw_candidates(2, False, 1, 0)) == 3
    kinds = (np.arange(600) // len(CONCENTRATIONS)) % 3
    assert (random[kinds == 0] > 0).all()
    assert ((random[kinds == 1] == 0).sum(1) == 1).all()
    assert set(np.argmin(random[kinds == 1], axis=1).tolist()) == {0, 1, 2, 3}
    shares = random[kinds == 2][:, -1]
    assert shares.min() >= 0.1
    assert shares.max() <= 0.9
    assert shares.mean() == pytest.approx(0.5, abs=0.05)
    np.testing.assert_allclose(random.sum(1), 1)
    assert measure_distance_from_equal(np.array([[0.5, 0.5], [0.75, 0.25]])).tolist() == [0, 0.25]


def test_merges_are_equal_weights_the_choice_and_the_best_apart_from_these(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights = np.array([[0.5, 0.5], [1, 0], [0.97, 0.03], [0.52, 0.48], [0, 1], [0.2, 0.8]])
    data = UnitScores("s", "mean", "query", np.array([[1], [5], [7], [6], [2], [3]], np.float32))
    found = Search(weights, [data], ChosenWeighting(1, HeldOut(1, 0.1)))
    assert pick_merges(found) == [EQUAL_CANDIDATE, 1, 5, 4]
    assert found.means.tolist() == [1, 5, 7, 6, 2, 3]
    monkeypatch.setattr("emberge_weights.real_merges.MERGES", 3)
    assert pick_merges(found) == [EQUAL_CANDIDATE, 1, 5]
    real = RealMerges([0, 1, 5], [data.select([0, 1, 2])])
    assert real.means.tolist() == [1, 5, 7]
    assert real.choose_final(found) == 5


def test_a_search_scores_all_candidates_on_the_sets() -> None:
    sets = [ranked([{n: 1}, {2 * n: 1}], 12) for n in (1, 2)]
    given = [[members(2, 12)[n]] * 2 for n in range(3)]
    found = search_weights(sets, given, base=True, candidates=20, seed=4)
    assert found.weights.shape == (20, 3)
    np.testing.assert_allclose(found.weights[0], [0.5, 0.5, 0])
    for one, scores in zip(sets, found.scores, strict=True):
        expected = score_set(one, [each[0] for each in given], found.weights, found.weights[:4])
        np.testing.assert_array_equal(scores.values, expected.values)
    assert found.choice == choose_weighting(found.weights, found.scores, 4)
    assert len(search_weights(sets[:1], given, base=False, candidates=1, seed=4).weights) == 7
