"""A generation that is killed ends, run again, in the same bytes, and buys no kept reply twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.killed_generating import PARALLEL
from tests.support.killed_steps import assert_same_ends, read_deaths


def die(root: Path, count: int, kind: str = "generate") -> list[dict[str, Any]]:
    deaths = read_deaths("killed_generating.py", root / "work", count, kind)
    assert len(deaths) == count
    return deaths


def check(deaths: list[dict[str, Any]]) -> None:
    assert_same_ends(deaths)
    assert [death for death in deaths if death["again"]["kept"]] == []
    assert [death for death in deaths if death["again"]["on their way"] > PARALLEL] == []


@pytest.mark.slow
def test_a_generation_that_is_killed_goes_on(tmp_path: Path) -> None:
    check(die(tmp_path, 4))


@pytest.mark.slow
def test_twenty_kills_change_no_byte_and_buy_nothing_twice(tmp_path: Path) -> None:
    deaths = die(tmp_path, 20)
    check(deaths)
    assert sum(0 < one["kept"] < 300 for one in deaths) >= 5, "some came between requests"


@pytest.mark.slow
def test_twenty_kills_from_documents_to_scores_change_no_byte_and_buy_nothing_twice(
    tmp_path: Path,
) -> None:
    """Of all that `emberge adapt` does with documents, from the first request to the scores."""
    deaths = die(tmp_path, 20, "adapt")
    check(deaths)
    assert sum(not one["kept"] for one in deaths) < 10, "most came after requests"
