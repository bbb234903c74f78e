"""Random towers around a text model compose with it; shuffled parts keep numbers and not their order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from emberge import (
    Artifact,
    Model,
    ModelRef,
    Plugins,
    RecipeError,
    check_recipe,
    load_plugins,
    load_recipe,
    run_recipe,
    shuffled,
    stable_seed,
)
from emberge_demo.random_tower import RandomTower
from emberge_demo.shuffled_parts import ShuffledParts
from safetensors.torch import load_file

from tests.support.bench import Bench
from tests.support.glance import Glance
from tests.support.media_models import media_model
from tests.support.specialists import (
    HEARD,
    PICTURES,
    SEEN_ROPE,
    VISION_IDS,
    change_config,
    text_model,
    vision_model,
)
from tests.support.watched import assert_built_as_promised

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
    vision_model(root / "vision")
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


def test_shuffled_parts_are_built_as_every_checkpoint(root: Path, tmp_path: Path) -> None:
    folder = root / "vision"
    step = ShuffledParts(model=ModelRef(str(folder)), parts=("visual.merger",), seed=3)
    artifact = assert_built_as_promised(step, tmp_path, folder, "shuffled")
    assert artifact.parents == (str(folder),)
    before, after = (load_file(f / "model.safetensors") for f in (folder, tmp_path / "out"))
    chosen = [name for name in before if ".visual.merger." in name]
    assert artifact.details == {
        "made_by": "shuffling the weights of",
        **{"tensors": len(chosen), "seed": 3},
    }
    for name, tensor in before.items():
        expected = tensor
        if name in chosen:  # each row has an order of its own; a vector is one row
            rows = tensor.view(1 if tensor.ndim == 1 else len(tensor), -1)
            orders = [shuffled(rows.shape[1], stable_seed(3, name, i)) for i in range(len(rows))]
            moved = [row[torch.from_numpy(o)] for row, o in zip(rows, orders, strict=True)]
            expected = torch.stack(moved).view(tensor.shape)
        assert after[name].equal(expected), name


def test_parts_that_are_there_are_no_problem(root: Path) -> None:
    step = ShuffledParts(model=ModelRef(str(root / "vision")), parts=("visual", "lm_head"))
    (problem,) = step.check(Glance())
    assert problem.where == "parts"
    assert "has no part 'lm_head'" in problem.message
    good = ShuffledParts(model=step.model, parts=("visual", "visual.merger", "language_model"))
    assert list(good.check(Glance())) == []


class Plain(Bench):
    """A bench whose folder stays away where a step removes it."""

    @property
    def folder(self) -> Path:
        return self.root / "out"


# ── towers drawn at random ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["vision", "audio"])
def test_a_random_towers_folder_is_like_a_released_one(
    kind: Literal["vision", "audio"], root: Path, tmp_path: Path
) -> None:
    folder = root / "text"
    options: dict[str, Any] = {"vision": VISION} if kind == "vision" else {"audio": AUDIO}
    bench = Plain(tmp_path, seed=5)
    bench.folder.mkdir()
    bench.many[str(folder)] = [Model("text", folder, "content", Artifact("model", size=77))]
    artifact = RandomTower(model=ModelRef(str(folder)), **options).run(bench)
    weights = load_file(bench.folder / "model.safetensors")
    assert artifact == Artifact(
        kind="model",
        size=77,
        parents=(str(folder),),
        details={
            "made_by": "adding a random tower to",
            "model_type": {"vision": "qwen3_vl", "audio": "qwen3_asr"}[kind],
            "parameters": sum(tensor.numel() for tensor in weights.values()),
            "seed": 5,
        },
    )
    processors = {
        path.name: json.loads(path.read_text())
        for path in bench.folder.glob("*processor_config.json")
    }
    common = {
        **PICTURES,
        # 8 × 8 pixels at least, and 256 times that at most.
        "size": {"shortest_edge": 64, "longest_edge": 16384},
        "processor_class": "Qwen3VLProcessor",
    }
    image = {**common, "image_processor_type": "Qwen2VLImageProcessorFast"}
    video = {**common, "video_processor_type": "Qwen3VLVideoProcessor"}
    assert (
        processors
        == {
            "vision": {"preprocessor_config.json": image, "video_preprocessor_config.json": video},
            "audio": {
                "processor_config.json": {
                    "feature_extractor": HEARD,
                    "processor_class": "Qwen3ASRProcessor",
                }
            },
        }[kind]
    )
    config = json.loads((bench.folder / "config.json").read_text())
    if kind == "vision":
        assert {name: config[name] for name in VISION_IDS} == VISION_IDS
        assert config["vision_config"]["out_hidden_size"] == 32
        rope = config["text_config"]["rope_parameters"]
        assert rope == {**SEEN_ROPE, "rope_type": "default"}
    else:
        assert config["audio_token_id"] == 266
        assert config["audio_config"]["output_dim"] == 32
    assert config["tie_word_embeddings"] is True
