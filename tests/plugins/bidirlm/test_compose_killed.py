"""A composition that dies ends, run again, in the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.killed import assert_deaths_change_nothing
from tests.support.specialists import change_config, write_specialists

RECIPE = """
steps:
  both:
    compose: {{text: {root}/text, vision: {root}/vision, audio: {root}/audio}}
"""


@pytest.mark.slow
def test_a_composition_that_dies_ends_in_the_same_bytes(tmp_path: Path) -> None:
    root = write_specialists(tmp_path / "models")
    change_config(root / "text", is_causal=False)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.format(root=root))
    assert_deaths_change_nothing(recipe, tmp_path / "disk", deaths=6)
