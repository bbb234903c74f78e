"""Similarities beside their plain reading: best documents, ranks of the consistency filter, and prompts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from emberge import Example, ModelRef
from emberge_data.steps import similarity
from emberge_data.steps.compared_set import TextPairs
from emberge_data.steps.consistency_filter_step import _count_higher, cut_shards
from emberge_data.steps.similarity import (
    VectorSimilarity,
    describe_spread,
    find_best,
    find_lowest_scores,
    find_thresholds,
)
from emberge_data.steps.teacher import OpenTeacher, Teacher
from numpy.typing import NDArray

from tests.support.training_data import dataset


def vectors(rows: int, seed: int) -> Any:
    """Vectors of small whole numbers, of which many are parallel or equal."""
    return np.random.default_rng(seed).integers(-2, 3, (rows, 4)).astype(np.float32)


def cosines(queries: Any, documents: Any) -> NDArray[np.float64]:
    units = [
        rows / np.maximum(np.linalg.norm(rows, axis=1), 1e-12)[:, None]
        for rows in (queries.astype(float), documents.astype(float))
    ]
    return np.asarray(units[0] @ units[1].T)


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {"_QUERIES_AT_ONCE": 5, "_TILE_ROWS": 2, "_TILE_COLUMNS": 7}.items():
        monkeypatch.setattr(similarity, name, size)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("small_tiles")
def test_the_best_documents_are_the_highest_allowed_ones_of_all_tiles(seed: int) -> None:
    queries, documents, draw = vectors(12, seed), vectors(30, seed + 9), np.random.default_rng(seed)
    count, shape = int(draw.integers(1, 34)), (12, 30)
    expected = cosines(queries, documents)
    forbidden = draw.random(shape) < 0.3
    # No cosine of such vectors is within 0.0008 of a ceiling: rounding decides nothing.
    ceilings = draw.choice([np.inf, 0.41, -0.11], 12).astype(np.float32)
    expected[forbidden] = -np.inf
    expected[expected > ceilings[:, None]] = -np.inf
    done: list[tuple[int, int]] = []
    found, scores = find_best(
        VectorSimilarity(queries, documents, "cpu"),
        lambda rows, columns: forbidden[rows, columns].nonzero(),
        size=shape,
        count=count,
        ceilings=ceilings,
        show_progress=lambda *words: done.append(words),
    )
    best = -np.sort(-expected, axis=1)[:, :count]
    np.testing.assert_allclose(scores[:, : best.shape[1]], best, atol=1e-6)
    assert done == sorted(done)
    assert done[-1] == (12, 12)
    for query, places in enumerate(found):
        listed = places[places >= 0]
        assert (
            len({*listed.tolist()}) == len(listed) == min(count, np.isfinite(expected[query]).sum())
        )
        np.testing.assert_allclose(expected[query, listed], scores[query, : len(listed)], atol=1e-6)


def test_equal_scores_are_in_the_order_of_documents() -> None:
    rows: Any = np.ones((3, 2), np.float32)
    found, _ = find_best(
        VectorSimilarity(rows[:1], rows, "cpu"),
        lambda *_: (np.zeros(0, int),) * 2,
        size=(1, 3),
        count=3,
        show_progress=lambda *_: None,
    )
    assert found.tolist() == [[0, 1, 2]]


def test_thresholds_follow_from_the_lowest_score_of_a_query() -> None:
    pairs = TextPairs(np.arange(3), np.array([0, 1, 0]), np.zeros(3, int))
    lowest = find_lowest_scores(pairs, np.array([0.9, -0.2, 0.8], np.float32), 2)
    assert find_thresholds(lowest, 0.95) == pytest.approx([0.76, -0.21], abs=1e-6)


def test_a_spread_names_the_lowest_the_median_and_the_highest() -> None:
    assert describe_spread(np.array([3.0, 1, 2])) == "1 to 3, median 2"
    assert describe_spread(np.array([])) == "none"


# ── consistency filter ──────────────────────────────────────────────────────────────────────────


def higher(queries: Any, documents: Any, pairs: TextPairs) -> list[float]:
    """The documents above each pair's own, of a set whose only texts they are."""
    compared: Any = SimpleNamespace(positives=pairs, dataset=range(int(pairs.rows.max()) + 1))
    compare = VectorSimilarity(queries, documents, "cpu")
    scores = compare.score(pairs.queries, pairs.documents)
    return _count_higher(compared, compare, np.arange(len(pairs.rows)), scores).tolist()


def test_a_document_with_an_equal_score_counts_half() -> None:
    documents = np.array([[1, 0], [1, 0], [2, 0], [1, 1]], np.float32)
    pairs = TextPairs(np.arange(4), np.zeros(4, int), np.arange(4))
    assert higher(np.array([[3, 1]], np.float32), documents, pairs) == [1, 1, 1, 3]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("small_tiles")
def test_the_number_of_higher_documents_is_that_of_a_plain_count(seed: int) -> None:
    """Without the other positives of a pair's row."""
    queries, documents, draw = vectors(8, seed), vectors(20, seed + 9), np.random.default_rng(seed)
    rows = np.sort(draw.integers(0, 8, 25))
    pairs = TextPairs(rows, rows, draw.integers(0, 20, 25))
    scores, expected = cosines(queries, documents), []
    for row, document in zip(rows.tolist(), pairs.documents.tolist(), strict=True):
        others = {*pairs.documents.tolist()} - {*pairs.documents[rows == row].tolist()}
        off = [scores[row, other] - scores[row, document] for other in others]
        expected.append(sum(1.0 if one > 1e-9 else 0.5 if one > -1e-9 else 0 for one in off))
    assert higher(queries, documents, pairs) == expected


@pytest.mark.parametrize(
    ("size", "expected"), [(100, [100]), (205, [100, 105]), (210, [100, 100, 10]), (9, [9])]
)
def test_a_last_shard_below_a_tenth_is_joined_to_the_one_before(
    size: int, expected: list[int]
) -> None:
    found = cut_shards(size, 100, seed=1, name="set")
    assert [len(rows) for rows in found] == expected
    assert sorted(np.concatenate(found).tolist()) == list(range(size))
    other = cut_shards(size, 100, seed=2, name="set")
    assert [rows.tolist() for rows in found] != [rows.tolist() for rows in other]


# ── prompts of teachers ─────────────────────────────────────────────────────────────────────────


class Store:
    """A store with what it was asked to embed."""

    def __init__(self, **prompts: str) -> None:
        self.encoder = SimpleNamespace(prompts=prompts)
        self.asked: list[Any] = []

    def embed(self, texts: Any, *, prompt: str, max_length: int | None) -> Any:
        self.asked.append((prompt, max_length))
        return texts


@pytest.mark.parametrize(
    ("options", "own", "of_set", "symmetric", "query", "document"),
    [
        ({}, {}, "", False, "", ""),
        ({}, {"query": "q", "document": "d", "passage": "p"}, "", False, "q", "d"),
        ({}, {"query": "q", "passage": "p"}, "s", False, "s", "p"),
        ({"query_prompt": "o"}, {"query": "q"}, "s", True, "o", "o"),
        ({"document_prompt": ""}, {"passage": "p"}, "s", True, "s", ""),
    ],
)
def test_prompts_are_the_options_then_the_sets_then_the_models(
    options: dict[str, Any],
    own: dict[str, str],
    of_set: str,
    symmetric: bool,
    query: str,
    document: str,
) -> None:
    store: Any = Store(**own)
    around: Any = SimpleNamespace(machine=SimpleNamespace(device="cpu"))
    teacher = OpenTeacher(
        Teacher(model=ModelRef("one"), max_length=9, **options), "vector", "one", store, around
    )
    given = dataset(
        "pairs", "retrieval", [Example("q", ("a",))], prompt=of_set, symmetric=symmetric
    )
    compared: Any = SimpleNamespace(dataset=given, queries=["aa"], documents=["a", "aaa", "aaaa"])
    teacher.compare(compared)
    assert store.asked == [(query, 9), (document, 9)]
