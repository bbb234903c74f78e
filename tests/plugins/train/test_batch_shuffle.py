from __future__ import annotations

from collections import Counter

import pytest
from emberge import DataError, DatasetInfo, PerDataset
from emberge.testing import check_sampler
from emberge_train.samplers.batch_shuffle import BatchShuffle


def _pool(*sizes: int) -> dict[DatasetInfo, range]:
    return {DatasetInfo(f"d{i}", "retrieval", n): range(n) for i, n in enumerate(sizes)}


def _sampler(size: int, tail: str = "drop") -> BatchShuffle:
    return BatchShuffle(batch_size=PerDataset(default=size), tail=tail)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:smaller than one batch")
def test_worked_example_of_ten_seven_and_three() -> None:
    batches = list(_sampler(4).batches(_pool(10, 7, 3), 0))
    assert Counter(b.parts[0].dataset for b in batches) == {"d0": 2, "d1": 1}
    used = [(b.parts[0].dataset, int(r)) for b in batches for r in b.parts[0].rows]
    assert len(used) == len(set(used)) == 12


@pytest.mark.parametrize(
    ("tail", "sizes"),
    [("drop", [4, 4]), ("wrap", [4, 4, 4]), ("keep", [2, 4, 4])],
)
def test_tails(tail: str, sizes: list[int]) -> None:
    batches = list(_sampler(4, tail).batches(_pool(10), 0))
    assert sorted(len(b.parts[0].rows) for b in batches) == sizes
    rows = {int(r) for b in batches for r in b.parts[0].rows}
    assert len(rows) == (8 if tail == "drop" else 10)


def test_a_dataset_smaller_than_a_batch_is_named() -> None:
    with pytest.warns(UserWarning, match=r"'d1' \(3 rows, batches of 4\).*lower their batch_size"):
        list(_sampler(4).batches(_pool(10, 3), 0))
    with pytest.raises(DataError, match=r"no dataset fills a batch.*tail: keep"):
        list(_sampler(4).batches(_pool(3), 0))
    assert [len(b.parts[0].rows) for b in _sampler(4, "wrap").batches(_pool(3), 0)] == [3]


def test_batch_size_may_differ_by_task_and_dataset() -> None:
    size = PerDataset(default=8, by_task={"sts": 4}, by_dataset={"b": 2})
    pool = {
        DatasetInfo("a", "sts", 8): range(8),
        DatasetInfo("b", "sts", 8): range(8),
        DatasetInfo("c", "retrieval", 8): range(8),
    }
    batches = list(BatchShuffle(batch_size=size).batches(pool, 0))
    found = {b.parts[0].dataset: len(b.parts[0].rows) for b in batches}
    assert found == {"a": 4, "b": 2, "c": 8}
    with pytest.raises(DataError, match=r"'c' \(retrieval\) has no batch_size"):
        list(BatchShuffle(batch_size=PerDataset(by_task={"sts": 4})).batches(pool, 0))


def test_only_rows_of_the_pool_are_used() -> None:
    pool = {DatasetInfo("a", "sts", 100): [5, 50, 95, 7]}
    (batch,) = _sampler(4).batches(pool, 0)
    assert sorted(int(r) for r in batch.parts[0].rows) == [5, 7, 50, 95]


def test_laws() -> None:
    check_sampler(_sampler(16))
    check_sampler(_sampler(16, "keep"))
    check_sampler(_sampler(16, "wrap"), repeats=True)


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        _sampler(0)
