"""Random towers around a text model compose with it; shuffled parts keep numbers and not their order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import Plugins, RecipeError, check_recipe, load_plugins, load_recipe, run_recipe
from safetensors.torch import load_file

from tests.support.media_models import media_model
from tests.support.specialists import change_config, text_model

VISION = {
    **{"depth": 2, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "patch_size": 4},
    **{"num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
}
AUDIO = {
    **{"d_model": 16, "encoder_layers": 1, "encoder_ffn_dim": 24, "encoder_attention_heads": 2},
    "downsample_hidden_size": 8,
}
STEPS = {
    "encoder": {"as_encoder": {"model": "./text"}},
    "seeing": {"random_tower": {"model": "./text", "vision": VISION}},
    "hearing": {"random_tower": {"model": "./text", "audio": AUDIO}},
    "both": {"compose": {"text": "$encoder", "vision": "$seeing", "audio": "$hearing"}},
    "blind": {"shuffled_parts": {"model": "$both", "parts": ["visual", "audio_tower.layers"]}},
}


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return load_plugins()


def recipe(root: Path, plugins: Plugins, steps: dict[str, Any], seed: int = 0) -> Any:
    path = root / f"recipe{seed}.yaml"
    path.write_text(json.dumps({"seed": seed, "steps": steps}))
    return load_recipe(path, plugins)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("towers")
    text_model(root / "text")
    return root


@pytest.fixture(scope="module")
def out(root: Path, plugins: Plugins) -> Path:
    found = recipe(root, plugins, STEPS)
    assert not check_recipe(found, plugins).errors
    run_recipe(found, root / "out", plugins, quiet=True)
    return root / "out"


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_a_tower_stands_on_the_trunk_of_the_text_model(out: Path, root: Path) -> None:
    text = tensors(root / "text")
    for name, tower in (("seeing", "visual."), ("hearing", "audio_tower.")):
        found = tensors(out / name)
        for one, value in text.items():
            assert found[one.replace("model.", "model.language_model.", 1)].equal(value), one
        assert any(f".{tower}" in f".{one}" for one in found)


def test_the_composed_model_has_the_towers_and_reads_both(out: Path) -> None:
    from emberge_encoder import TextEncoder
    from transformers import AutoModel

    both, seeing = tensors(out / "both"), tensors(out / "seeing")
    name = "visual.blocks.0.attn.qkv.weight"
    assert both[name].equal(seeing[f"model.{name}"])
    assert type(AutoModel.from_pretrained(out / "both")).__name__ == "Qwen3OmniMoeThinkerModel"
    assert not TextEncoder().describe(out / "both").problems


def test_one_seed_draws_one_tower(out: Path, root: Path, plugins: Plugins) -> None:
    steps = {
        "same": {"random_tower": {"model": "./text", "vision": VISION, "seed": 0}},
        "other": {"random_tower": {"model": "./text", "vision": VISION}},
    }
    run_recipe(recipe(root, plugins, steps, seed=1), root / "again", plugins, quiet=True)
    drawn = (out / "seeing" / "model.safetensors").read_bytes()
    assert (root / "again/same/model.safetensors").read_bytes() == drawn
    assert (root / "again/other/model.safetensors").read_bytes() != drawn


def test_shuffled_parts_have_the_numbers_of_each_row_in_another_order(out: Path) -> None:
    before, after = tensors(out / "both"), tensors(out / "blind")
    assert before.keys() == after.keys()
    moved = {name for name in before if not before[name].equal(after[name])}
    assert {".".join(name.split(".")[:2]) for name in moved if "audio" in name} == {
        "audio_tower.layers"
    }
    assert {name.partition(".")[0] for name in moved} == {"visual", "audio_tower"}
    for name in moved:
        one, two = (
            # A vector is one row.
            value[name].reshape(1 if value[name].ndim == 1 else len(value[name]), -1)
            for value in (before, after)
        )
        assert one.sort(dim=1).values.equal(two.sort(dim=1).values), name


def refused(root: Path, plugins: Plugins, step: dict[str, Any]) -> str:
    """What `check` has against a step."""
    with pytest.raises(RecipeError) as caught:
        check_recipe(recipe(root, plugins, {"step": step}, seed=9), plugins).raise_errors()
    return str(caught.value)


def test_a_text_model_without_rows_for_the_tokens_is_refused(
    tmp_path: Path, plugins: Plugins
) -> None:
    text_model(tmp_path / "text", vocab_size=262)
    found = refused(tmp_path, plugins, {"random_tower": {"model": "./text", "vision": VISION}})
    assert "262 rows" in found
    assert "vocab_size" in found


def test_another_family_is_refused(tmp_path: Path, plugins: Plugins) -> None:
    text_model(tmp_path / "text")
    change_config(tmp_path / "text", model_type="qwen2")
    found = refused(tmp_path, plugins, {"random_tower": {"model": "./text", "audio": AUDIO}})
    assert "qwen2" in found
    assert "take a qwen3" in found


def test_a_tower_that_transformers_refuses_is_named(root: Path, plugins: Plugins) -> None:
    wrong = {**VISION, "hidden_size": "wide"}
    found = refused(root, plugins, {"random_tower": {"model": "./text", "vision": wrong}})
    assert "vision" in found


@pytest.mark.parametrize("towers", [{}, {"vision": VISION, "audio": AUDIO}])
def test_it_is_one_tower(towers: dict[str, Any], root: Path, plugins: Plugins) -> None:
    assert "one of them" in refused(root, plugins, {"random_tower": {"model": "./text", **towers}})


def test_a_part_that_the_model_lacks_is_refused(tmp_path: Path, plugins: Plugins) -> None:
    media_model(tmp_path / "model", "qwen3_vl")
    step = {"shuffled_parts": {"model": "./model", "parts": ["visual", "audio_tower"]}}
    found = refused(tmp_path, plugins, step)
    assert "no part 'audio_tower'" in found
    assert "language_model, visual" in found
