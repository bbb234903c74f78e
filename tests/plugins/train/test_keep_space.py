"""Training into an old model's space: its numbers by hand, and in a recipe."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import Embeddings, Machine, check_recipe, load_plugins, parse_recipe, run_recipe
from emberge.encoding import TextEmbedder
from emberge_encoder import TextEncoder
from emberge_train.losses.keep_space import KeepSpace

from tests.support import tiny
from tests.support.losses import GUIDE
from tests.support.result_folders import folders
from tests.support.training_data import retrieval


def batch(anchor: Any, positive: Any, negative: Any, **options: Any) -> Embeddings:
    """Rows with one positive and one negative each, vectors of two numbers."""
    texts = [torch.tensor(one, dtype=torch.float64) for one in (anchor, positive, negative)]
    rows = len(anchor)
    valid = torch.ones(rows, 2, dtype=torch.bool)
    ids = torch.arange(3 * rows).view(rows, 3)
    return Embeddings(texts[0], texts[1][:, None], texts[2][:, None], valid, ids, **options)


def value(own: Embeddings, old: Embeddings) -> float:
    loss = KeepSpace(guide=GUIDE)
    return float(loss(dataclasses.replace(own, guide=old), {}))


OWN = batch([[1, 0], [0, 2]], [[3, 4], [1, 0]], [[0, 1], [5, 0]])
OLD = batch([[2, 0], [1, 0]], [[4, 3], [0, 1]], [[0, 7], [1, 0]])


def test_documents_by_hand() -> None:
    """2 - 2 cos: of row 0 0.08 (cosine 24 / 25) and 0, of row 1 2 (a right angle) and 0."""
    assert value(OWN, OLD) == pytest.approx((0.08 / 2 + 2 / 2) / 2, abs=1e-12)


def test_texts_that_a_row_lacks_do_not_count() -> None:
    valid = torch.tensor([[True, False], [True, True]])
    lacking = dataclasses.replace(OWN, valid=valid)
    assert value(lacking, OLD) == pytest.approx((0.08 + 2 / 2) / 2, abs=1e-12)


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
