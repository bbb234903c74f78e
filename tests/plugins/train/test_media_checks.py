"""Media that a training cannot read are found by its check, each with file and line of its row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from emberge import Plugins, check_recipe, load_plugins, parse_recipe
from scipy.io import wavfile

from tests.support import tiny
from tests.support.media_models import RATE, SIDE, drawing, media_model, tone

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
def plugins() -> Plugins:
    return load_plugins(block=())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checks")
    media_model(folder / "omni", "qwen3_omni_moe_thinker")
    tiny.checkpoint(folder / "bert")
    drawing(0).save(folder / "good.png")
    drawing(0, width=12 * SIDE, height=12 * SIDE).save(folder / "large.png")
    (folder / "broken.png").write_bytes(b"no image")
    wavfile.write(folder / "good.wav", RATE, tone(440))
    wavfile.write(folder / "other.wav", 8000, tone(440, rate=8000))
    wavfile.write(folder / "silent.wav", RATE, np.zeros(RATE, np.float32))
    return folder


def _backbone(options: str) -> tuple[str, str]:
    return "      loss:", f"      backbone: {{text_encoder: {{{options}}}}}\n      loss:"


@pytest.mark.parametrize(
    ("files", "change", "named"),
    [
        (("good.png", "good.png"), None, ()),
        (("good.wav", "good.wav"), None, ()),
        (("good.png", "broken.png"), None, ("rows.jsonl:2: ", "replace or remove")),
        (("good.png", "large.png"), None, ("rows.jsonl:2: ", "shrink: true")),
        (("good.wav", "silent.wav"), None, ("rows.jsonl:2: ", "replace or remove")),
        (("good.wav", "other.wav"), None, ("rows.jsonl:2: ", "resample: true")),
        # What the errors advise helps.
        (("large.png", "large.png"), _backbone("shrink: true"), ()),
        (("other.wav", "other.wav"), _backbone("resample: true"), ()),
        (("good.png",), ("./omni", "./bert"), ("rows.jsonl:1: ", "reads text")),
        (
            ("good.png",),
            _backbone("freeze: [visuals]"),
            ("'visuals'", "did you mean 'visual'", "audio_tower"),
        ),
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
    text = RECIPE.replace(*change) if change else RECIPE
    recipe = parse_recipe(text, plugins, path=place / "recipe.yaml")
    found = "\n".join(str(problem) for problem in check_recipe(recipe, plugins).errors)
    assert bool(found) == bool(named)
    assert [word for word in named if word not in found] == []
