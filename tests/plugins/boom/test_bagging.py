from __future__ import annotations

import pytest
from emberge import DatasetInfo, PerDataset, Pool, TaskKind
from emberge.testing import check_sampler
from emberge_boom.bagging import Bagging

from tests.support.laws import find_broken_law


def _bag(bagging: Bagging, size: int, seed: int = 0, name: str = "d") -> list[int]:
    info = DatasetInfo(name, "retrieval", size)
    return [int(row) for row in bagging.select({info: range(size)}, seed)[info]]


@pytest.mark.parametrize(
    ("size", "counts"),
    [(1000, [200, 400, 600, 800, 1000]), (7, [1, 3, 4, 6, 7]), (3, [1, 1, 2, 2, 3])],
)
def test_bags_have_the_sizes_worked_by_hand(size: int, counts: list[int]) -> None:
    ratios = (0.2, 0.4, 0.6, 0.8, 1.0)
    assert [len(_bag(Bagging(ratio=r), size)) for r in ratios] == counts


@pytest.mark.parametrize("size", [1, 2, 9, 1000])
def test_half_and_the_rest_split_every_dataset(size: int) -> None:
    first = _bag(Bagging(ratio=0.5, part="first"), size)
    rest = _bag(Bagging(ratio=0.5, part="rest"), size)
    assert not set(first) & set(rest)
    assert sorted(first + rest) == list(range(size))
    assert 0 <= len(rest) - len(first) <= 1


def test_a_bag_depends_on_seed_ratio_draw_and_dataset() -> None:
    bag = _bag(Bagging(ratio=0.5), 100)
    assert bag == _bag(Bagging(ratio=0.5), 100)
    assert bag != _bag(Bagging(ratio=0.5, draw=1), 100)
    assert bag != _bag(Bagging(ratio=0.5), 100, seed=1)
    assert bag != _bag(Bagging(ratio=0.5), 100, name="e")
    smaller = set(_bag(Bagging(ratio=0.3), 100))
    assert not smaller <= set(bag)  # independent draws


def test_a_ratio_may_differ_by_task_and_dataset() -> None:
    sets: tuple[tuple[str, TaskKind], ...] = (("a", "sts"), ("b", "sts"), ("c", "clustering"))
    pool: Pool = {DatasetInfo(name, task, 100): range(100) for name, task in sets}
    ratio = PerDataset(by_task={"sts": 0.3}, by_dataset={"b": 0.6})
    found = {i.name: rows for i, rows in Bagging(ratio=ratio).select(pool, 0).items()}
    assert {name: len(rows) for name, rows in found.items()} == {"a": 30, "b": 60, "c": 100}
    # What one ratio draws of a dataset does not depend on the others'.
    assert list(found["b"]) == _bag(Bagging(ratio=0.6), 100, name="b")
    split = [
        {
            i.name: set(map(int, rows))
            for i, rows in Bagging(ratio=ratio, part=part).select(pool, 0).items()
        }
        for part in ("first", "rest")
    ]
    for name in "abc":
        first, rest = (one.get(name, set()) for one in split)
        assert not first & rest
        assert first | rest == set(range(100))


def test_a_bag_of_a_selection_stays_inside_it() -> None:
    info = DatasetInfo("d", "sts", 100)
    odd = list(range(1, 100, 2))
    assert set(map(int, Bagging(ratio=0.5).select({info: odd}, 0)[info])) < set(odd)


@pytest.mark.parametrize("bagging", [Bagging(ratio=0.6), Bagging(ratio=0.3, part="rest")], ids=str)
def test_bags_keep_the_laws_of_samplers(bagging: Bagging) -> None:
    assert find_broken_law(check_sampler, bagging) == ""
