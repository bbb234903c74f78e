"""The sampler `proportional` with shares that a step found."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from emberge import DataError, DatasetInfo, EmbergeError, FileRef, PerDataset, Pool, Sampler
from emberge.training import FoundMixture
from emberge_train.samplers.proportional import Proportional

POOL: Pool = {
    DatasetInfo(name, "retrieval", size=rows): range(rows)
    for name, rows in {"a": 100, "b": 300, "c": 50}.items()
}


def resolve(tmp_path: Path, shares: dict[str, float], datasets: dict[str, list[str]]) -> Sampler:
    FoundMixture(shares=shares, datasets=datasets).write(tmp_path)
    sampler = Proportional(shares=FileRef(".", tmp_path), batch_size=PerDataset(default=10))
    with pytest.raises(EmbergeError, match="ask for the resolved sampler"):
        sampler.select(POOL, 0)
    return sampler.resolved(lambda _: tmp_path)


def count_batches(sampler: Sampler) -> Counter[str]:
    pool = sampler.select(POOL, 0)
    return Counter(part.dataset for batch in sampler.batches(pool, 1) for part in batch.parts)


def test_datasets_of_a_group_divide_its_share_by_their_rows(tmp_path: Path) -> None:
    sampler = resolve(tmp_path, {"ab": 0.8, "c": 0.2}, {"ab": ["a", "b"], "c": ["c"]})
    assert count_batches(sampler) == {"a": 9, "b": 27, "c": 9}


def test_a_share_of_zero_leaves_a_dataset_out(tmp_path: Path) -> None:
    sampler = resolve(tmp_path, {"a": 0.5, "b": 0.0, "c": 0.5}, {n: [n] for n in "abc"})
    counts = count_batches(sampler)
    assert counts.keys() == {"a", "c"}
    assert counts["a"] == counts["c"]


@pytest.mark.parametrize(
    ("shares", "fault"),
    [
        ({"a": 0.5, "b": 0.5}, "dataset 'c' of this training has no share"),
        ({"a": 0.2, "b": 0.2, "c": 0.2, "d": 0.4}, "'d' has a share of 0.4, and is no dataset"),
    ],
)
def test_shares_of_other_datasets_are_refused(
    tmp_path: Path, shares: dict[str, float], fault: str
) -> None:
    sampler = resolve(tmp_path, shares, {name: [name] for name in shares})
    with pytest.raises(DataError, match=fault):
        sampler.select(POOL, 0)
