"""Media that a training cannot read are found by its check, each with file and line of its row."""

from __future__ import annotations

import json
from collections.abc import Callable
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


@pytest.fixture
def faults(place: Path, plugins: Plugins) -> Callable[..., str]:
    def of(*files: str, change: tuple[str, str] = ("", "")) -> str:
        kinds = {".png": "image", ".wav": "audio"}
        rows = [{kinds[Path(file).suffix]: file, "caption": f"one {file}"} for file in files]
        (place / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        text = RECIPE.replace(*change)
        recipe = parse_recipe(text, plugins, path=place / "recipe.yaml")
        return "\n".join(str(problem) for problem in check_recipe(recipe, plugins).errors)

    return of


def test_good_media_pass(faults: Callable[..., str]) -> None:
    assert not faults("good.png", "good.png")
    assert not faults("good.wav", "good.wav")


@pytest.mark.parametrize(
    ("good", "bad", "fix"),
    [
        ("good.png", "broken.png", "replace or remove"),
        ("good.png", "large.png", "shrink: true"),
        ("good.wav", "silent.wav", "replace or remove"),
        ("good.wav", "other.wav", "resample: true"),
    ],
)
def test_a_bad_medium_has_its_place_and_its_fix(
    faults: Callable[..., str], good: str, bad: str, fix: str
) -> None:
    found = faults(good, bad)
    assert "rows.jsonl:2: " in found
    assert fix in found


@pytest.mark.parametrize(
    ("bad", "option"), [("large.png", "shrink: true"), ("other.wav", "resample: true")]
)
def test_what_the_error_advises_helps(faults: Callable[..., str], bad: str, option: str) -> None:
    change = ("      loss:", f"      backbone: {{text_encoder: {{{option}}}}}\n      loss:")
    assert not faults(bad, bad, change=change)


def test_a_model_of_text_is_named(faults: Callable[..., str]) -> None:
    found = faults("good.png", change=("./omni", "./bert"))
    assert "rows.jsonl:1: " in found
    assert "reads text" in found


def test_an_unknown_part_to_freeze_is_named(faults: Callable[..., str]) -> None:
    change = ("      loss:", "      backbone: {text_encoder: {freeze: [visuals]}}\n      loss:")
    found = faults("good.png", change=change)
    assert "'visuals'" in found
    assert "did you mean 'visual'" in found
    assert "audio_tower" in found
