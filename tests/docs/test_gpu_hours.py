"""The hours and memory that the page on GPUs names are those that `check` would estimate."""

from __future__ import annotations

import re

import pytest
from emberge.recipes import Gpu

from tests.docs.pages import DOCS

PAGE = (DOCS / "howto" / "gpus.md").read_text("utf-8")
TOKENS, OPERATIONS, SHARE = 1_000_000 * 200, 8, 0.3
ROWS = re.findall(r"^\| ([\d.]+) B \| (.+) \|$", PAGE, re.MULTILINE)


def test_the_page_says_what_it_reckons_with() -> None:
    assert "a million pairs of 200 tokens" in PAGE
    assert (
        f"{OPERATIONS} operations for each token and parameter at {SHARE:.0%}".replace("%", " %")
        in PAGE
    )
    assert "estimates" in PAGE
    assert "not measured" in PAGE


@pytest.mark.parametrize(("size", "cells"), ROWS, ids=[size for size, _ in ROWS])
def test_each_row_is_what_an_estimate_gives(size: str, cells: str) -> None:
    parameters = float(size) * 1e9
    *hours, memory, adapter = (float(cell.split()[0]) for cell in cells.split(" | "))
    for name, shown in zip(("H100", "A100", "L4"), hours, strict=True):
        assert f"| {name} |" in PAGE
        wanted = Gpu.parse(name, SHARE).hours(OPERATIONS * TOKENS * parameters)
        assert shown == pytest.approx(wanted, rel=0.04)
    assert memory == pytest.approx(16 * parameters / 1e9)
    assert adapter == pytest.approx(4 * parameters / 1e9)


def test_the_three_sizes_are_there() -> None:
    assert [size for size, _ in ROWS] == ["0.1", "0.6", "4"]
