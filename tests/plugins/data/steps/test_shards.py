"""Consistency filter: the worked numbers of its ranks, and the cutting of shards."""

from __future__ import annotations

import numpy as np
import pytest
from emberge_data.steps.consistency_filter import count_higher, shards
from emberge_data.steps.search.space import Space

SCORES = [[0.9, 0.95, 0.2, 0.1], [0.3, 0.8, 0.85, 0.9], [0.1, 0.2, 0.7, 0.1], [0.5, 0.6, 0.7, 0.4]]


@pytest.mark.parametrize(
    ("top_k", "kept"),
    [
        (1, [False, False, True, False]),
        (2, [True, False, True, False]),
        (3, [True, True, True, False]),
    ],
)
def test_a_pair_stays_if_its_document_is_among_the_nearest(top_k: int, kept: list[bool]) -> None:
    # Documents along the axes have the scores as cosines, but for the length of each query.
    space = Space(np.array(SCORES, np.float32), np.eye(4, dtype=np.float32))
    everything = np.arange(4)
    higher = count_higher(space, everything, everything, everything)
    assert (higher < top_k).tolist() == kept


def test_a_document_with_an_equal_score_counts_half() -> None:
    documents = np.array([[1, 0], [1, 0], [2, 0], [1, 1]], np.float32)
    space = Space(np.array([[3, 1]], np.float32), documents)
    higher = count_higher(space, np.zeros(3, int), np.arange(3), np.arange(4))
    assert higher.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("size", "expected"), [(100, [100]), (205, [100, 105]), (210, [100, 100, 10]), (9, [9])]
)
def test_a_last_shard_below_a_tenth_is_joined_to_the_one_before(
    size: int, expected: list[int]
) -> None:
    found = shards(size, 100, seed=1, name="set")
    assert [len(rows) for rows in found] == expected
    assert sorted(np.concatenate(found).tolist()) == list(range(size))


def test_shards_depend_on_seed_and_name() -> None:
    first = np.concatenate(shards(50, 20, seed=1, name="a")).tolist()
    assert first == np.concatenate(shards(50, 20, seed=1, name="a")).tolist()
    assert first != np.concatenate(shards(50, 20, seed=2, name="a")).tolist()
    assert first != np.concatenate(shards(50, 20, seed=1, name="b")).tolist()
    assert first != list(range(50))
