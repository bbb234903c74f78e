"""Media that a training cannot read are found by its check, each with file and line of its row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from emberge import Plugins
from scipy.io import wavfile

from tests.support import tiny
from tests.support.media_models import RATE, drawing, media_model, tone
from tests.support.recipe_runs import find_faults

RECIPE = """
steps:
  member:
    train:
      model: ./omni
      data: ./rows.jsonl
      loss: infonce
      sampler: {batch_shuffle: {batch_size: 2}}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checks")
    media_model(folder / "omni", "qwen3_omni_moe_thinker")
    tiny.checkpoint(folder / "bert")
    drawing(0).save(folder / "good.png")
    wavfile.write(folder / "good.wav", RATE, tone(440))
    return folder


@pytest.mark.parametrize(
    ("files", "change", "named"),
    [
        (("good.png", "good.png"), None, ()),
        (("good.wav", "good.wav"), None, ()),
        (("good.png",), ("./omni", "./bert"), ("rows.jsonl:1: ", "reads text")),
    ],
)
def test_media_that_cannot_be_read_have_their_place_and_a_fix(
    files: Sequence[str],
    change: tuple[str, str] | None,
    named: Sequence[str],
    place: Path,
    plugins: Plugins,
) -> None:
    kinds = {".png": "image", ".wav": "audio"}
    rows = [{kinds[Path(file).suffix]: file, "caption": f"one {file}"} for file in files]
    (place / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = find_faults(place, RECIPE.replace(*change) if change else RECIPE, plugins)
    assert bool(found) == bool(named)
    assert [word for word in named if word not in found] == []
