"""An upcycling and a downcycling that die end, run again, in the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.killed import assert_deaths_change_nothing
from tests.support.routable import dense

RECIPE = """
steps:
  routed:
    upcycle: {{model: {model}, experts: 4, layers: all}}
  back:
    downcycle: {{model: $routed}}
"""


@pytest.mark.slow
def test_an_upcycling_that_dies_ends_in_the_same_bytes(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.format(model=dense(tmp_path / "dense", "granite")))
    assert_deaths_change_nothing(recipe, tmp_path / "disk", deaths=8)
