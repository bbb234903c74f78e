"""Samples of a study's datasets."""

from __future__ import annotations

import pytest
from emberge import DataError
from emberge_boom.study.study_run import sample_size


def test_samples_are_as_large_as_the_smallest_or_as_given() -> None:
    sizes = {"a": 30, "b": 20, "c": 20}
    assert sample_size(None, sizes) == 20
    assert sample_size(12, sizes) == 12
    with pytest.raises(DataError, match="'b' has 20; write rows: 20, or leave that dataset out"):
        sample_size(21, sizes)
