"""An upcycling and a downcycling that are killed on the way end in the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.killed_steps import assert_same_bytes
from tests.support.routable import dense

RECIPE = """
steps:
  routed:
    upcycle: {{model: {model}, experts: 4, layers: all}}
  back:
    downcycle: {{model: $routed}}
"""


@pytest.mark.slow
def test_killed_and_continued_gives_the_same_bytes(tmp_path: Path) -> None:
    model = dense(tmp_path / "dense", "granite")
    assert_same_bytes(RECIPE.format(model=model), tmp_path, deaths=4, outside=4)
