"""Training into an old model's space, in a recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from emberge import Machine, check_recipe, load_plugins, parse_recipe, run_recipe
from emberge.encoding import TextEmbedder
from emberge_encoder import TextEncoder

from tests.support import tiny
from tests.support.result_folders import folders
from tests.support.training_data import retrieval

RECIPE = """
steps:
  kept:
    train:
      model: ./base
      data: {path: find.jsonl, task: retrieval}
      sampler: {batch_shuffle: {batch_size: 8}}
      loss: [{infonce: {temperature: 0.1}}, {keep_space: {guide: {model: ./old}, weight: %s}}]
      learning_rate: 0.003
      dropout: false
      max_steps: 12
"""


@pytest.fixture
def place(bert: Path, berts: list[Path], tmp_path: Path) -> Path:
    (tmp_path / "base").symlink_to(berts[0])
    (tmp_path / "old").symlink_to(bert)
    rows = [{"anchor": e.anchor, "positive": e.positives[0]} for e in retrieval(24).rows]
    (tmp_path / "find.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_a_training_with_more_weight_stays_nearer_to_the_old_space(place: Path) -> None:
    plugins = load_plugins(block=())
    texts = [e.positives[0] for e in retrieval(24).rows]

    def embedded(folder: Path) -> Any:
        encoder = TextEncoder().load(folder, device="cpu", dtype="float32")
        return TextEmbedder(encoder).embed(texts)

    old, apart = embedded(place / "old"), {}
    for weight in (0, 3):
        recipe = parse_recipe(RECIPE % weight, plugins, path=place / "recipe.yaml")
        assert not check_recipe(recipe, plugins).errors
        made = folders(
            run_recipe(recipe, place / f"out{weight}", plugins, machine=Machine(), quiet=True)
        )
        apart[weight] = float(((embedded(made["kept"]) - old) ** 2).sum(1).mean())
    assert apart[3] < 0.7 * apart[0]


def test_a_guide_of_another_size_is_refused_before_the_training(place: Path) -> None:
    (place / "old").unlink()
    tiny.checkpoint(place / "old", hidden_size=16)
    plugins = load_plugins(block=())
    recipe = parse_recipe(RECIPE % 1, plugins, path=place / "recipe.yaml")
    (error,) = check_recipe(recipe, plugins).errors
    assert "of 16 numbers" in str(error)
    assert "of 32" in str(error)
