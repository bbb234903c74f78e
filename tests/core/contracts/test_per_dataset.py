"""Options by dataset."""

from __future__ import annotations

from emberge import PerDataset
from emberge_train import BatchShuffle


def test_options_for_other_datasets_are_left_out() -> None:
    size = PerDataset(default=8, by_dataset={"a": 2, "b": 4}, by_task={"sts": 16})
    found = PerDataset.narrow(BatchShuffle(batch_size=size, tail="keep"), {"b", "c"})
    assert found.batch_size == PerDataset(default=8, by_dataset={"b": 4}, by_task={"sts": 16})
    assert found.tail == "keep"
