"""A loss or a score that is no finite number ends the work, and is never written."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import CheckpointError, load_plugins, parse_recipe, run_recipe
from emberge.encoding import TextEmbedder
from emberge_encoder import EmbeddingStore, TextEncoder
from emberge_fine_tuned import FineTuned
from safetensors.torch import load_file, save_file

from tests.support.bench import Bench, model_at
from tests.support.tuned_sets import scored, task, tuner, write_sets


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sets(tmp_path_factory.mktemp("sets"))


def wild(folder: Path, *rates: float, **options: Any) -> FineTuned:
    return tuner(task(folder, metric="accuracy"), steps=4, learning_rate=rates, **options)


def test_a_fine_tuning_that_diverges_has_no_score(folder: Path, bert: Path, tmp_path: Path) -> None:
    evaluator = wild(folder, 1e30)
    with pytest.raises(CheckpointError, match=r"'subject', seed 0: .*not finite \(step \d") as told:
        scored(evaluator, bert, tmp_path)
    assert "lower learning_rate" in str(told.value)


def test_a_rate_that_diverges_is_not_among_those_to_choose_from(
    folder: Path, bert: Path, tmp_path: Path
) -> None:
    bench = Bench(tmp_path)
    evaluator = wild(folder, 1e30, 1e-3, eval_steps=1)
    (found,) = evaluator.evaluate(model_at(bert), evaluator.plan(bench), bench)
    assert found.result["learning_rate"] == 1e-3
    assert [each["learning_rate"] for each in found.result["dev_by_setting"]] == [0.001]


def test_embeddings_that_are_no_numbers_are_refused_where_all_are_made(
    bert: Path, tmp_path: Path
) -> None:
    encoder = TextEncoder().load(bert, device=torch.device("cpu"), dtype="float32")
    with torch.no_grad():
        next(encoder.module.parameters()).fill_(float("nan"))
    embedder = TextEmbedder(encoder, model="broken")
    with pytest.raises(CheckpointError, match=r"broken: 2 of 2 .* not finite; '.+' has NaN"):
        embedder.embed(["one", "two"])
    store = EmbeddingStore(tmp_path, encoder, model_key="key", model_name="broken")
    with pytest.raises(CheckpointError, match="broken: 2 of 2"):
        store.embed(["one", "two"])
    assert not list(tmp_path.rglob("vectors.npy"))


def test_a_model_of_no_numbers_is_not_exported(bert: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(bert, tmp_path / "broken"))
    weights = load_file(broken / "model.safetensors")
    weights["embeddings.LayerNorm.weight"].fill_(float("nan"))
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    text = "steps:\n  served:\n    export: {model: ./broken, formats: [float32]}\n"
    plugins = load_plugins()
    recipe = parse_recipe(text, plugins, path=tmp_path / "recipe.yaml")
    with pytest.raises(CheckpointError, match="NaN or infinite"):
        run_recipe(recipe, tmp_path / "out", plugins, quiet=True)
    assert not (tmp_path / "out" / "served").exists()
