"""Minings that are killed on the way end, run again, in the bytes of one that was not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.killed_steps import assert_same_ends, read_deaths


@pytest.mark.slow
def test_a_mining_that_is_killed_at_any_moment_ends_in_the_same_bytes(
    bert: Path, tmp_path: Path
) -> None:
    deaths = read_deaths("killed_mining.py", bert, tmp_path / "work", 4)
    assert len(deaths) == 4
    assert_same_ends(deaths)
