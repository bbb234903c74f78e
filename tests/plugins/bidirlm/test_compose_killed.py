"""A composition that is killed on the way ends in the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.killed_steps import assert_same_bytes
from tests.support.specialists import change_config, write_specialists

RECIPE = """
steps:
  both:
    compose: {{text: {root}/text, vision: {root}/vision, audio: {root}/audio}}
"""


@pytest.mark.slow
def test_killed_and_continued_gives_the_same_bytes(tmp_path: Path) -> None:
    root = write_specialists(tmp_path / "models")
    change_config(root / "text", is_causal=False)
    assert_same_bytes(RECIPE.format(root=root), tmp_path, deaths=3, outside=2)
