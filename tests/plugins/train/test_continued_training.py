"""Trainings that end in an average and keep their state, and those that continue from it, by recipe."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from emberge import Machine, Plugins, load_plugins, parse_recipe, run_recipe
from emberge.errors import EmbergeError
from emberge.recipes import check_recipe
from safetensors.torch import load_file, save_file

from tests.support.training_data import write_training_sets

HEADS = """
seed: 0
x-training: &training
  data: {path: ./find.jsonl, task: retrieval}
  sampler: {batch_shuffle: {batch_size: 8}}
  loss: {infonce: {temperature: 0.1}}
  learning_rate: 1.0e-3
  schedule: constant
  token_budget: 80
steps:
  first:
    train: {<<: *training, model: ./base, average: {share: 0.6}, keep_state: true}
"""
NEXT = "  next:\n    train: {{<<: *training, model: {model}, from_state: true, {more}}}\n"


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return load_plugins(block=())


@pytest.fixture
def place(bert: Path, tmp_path: Path) -> Path:
    """A folder with a model and a training set of five batches."""
    (tmp_path / "base").symlink_to(bert)
    write_training_sets(tmp_path)
    return tmp_path


def ran(place: Path, text: str, plugins: Plugins, **more: Any) -> dict[str, Path]:
    recipe = parse_recipe(text, plugins, path=place / "recipe.yaml")
    results = run_recipe(recipe, place / "out", plugins, machine=Machine(), quiet=True, **more)
    return {name: one.path.resolve() for name, one in results.items()}


def problems(place: Path, text: str, plugins: Plugins, severity: str = "error") -> str:
    recipe = parse_recipe(text, plugins, path=place / "recipe.yaml")
    found = check_recipe(recipe, plugins).problems
    return "\n".join(str(problem) for problem in found if problem.severity == severity)


def details(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "artifact.json").read_text())
    return found


def test_a_step_continues_from_the_state_of_another_without_warm_up(
    place: Path, plugins: Plugins
) -> None:
    text = HEADS + NEXT.format(model="$first", more="epochs: 4, keep_state: true")
    assert problems(place, text, plugins) == ""
    folders = ran(place, text, plugins)
    first = details(folders["first"])
    assert first["details"]["average"] == {"share": 0.6, "weights": "linear", "every": 1}
    assert first["details"]["training_state"]["adam_beta1"] == 0.9
    assert "training_state/tensors.safetensors" in first["files"]
    assert "training_state" not in (folders["first"] / "README.md").read_text()
    kept = [load_file(f / "training_state/tensors.safetensors") for f in folders.values()]
    counter = next(name for name in kept[0] if name.startswith("step."))
    assert [float(one[counter]) for one in kept] == [5, 25]
    rates = []
    for folder in folders.values():
        rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        rates.append([row["value"] for row in rows if row["name"] == "learning_rate"])
    assert rates == [[1e-3] * 5, [1e-3] * 20]  # else two steps would warm up


def test_a_folder_from_outside_is_continued_and_its_state_decides_the_result(
    place: Path, plugins: Plugins
) -> None:
    (folder,) = ran(place, HEADS, plugins).values()
    shutil.copytree(folder, place / "mine")
    text = HEADS + NEXT.format(model="./mine", more="max_steps: 2")
    before = ran(place, text, plugins)["next"]
    assert ran(place, text, plugins)["next"] == before
    path = place / "mine/training_state/tensors.safetensors"
    changed = {name: 2 * t if "exp_avg." in name else t for name, t in load_file(path).items()}
    save_file(changed, path)
    after = ran(place, text, plugins)["next"]
    assert after != before
    (one, other) = (load_file(f / "model.safetensors") for f in (before, after))
    assert any(not one[name].equal(other[name]) for name in one)


def test_a_merge_of_trainings_does_not_see_their_states(place: Path, plugins: Plugins) -> None:
    text = HEADS + "  soup:\n    merge: {models: [$first, ./base], strategy: linear}\n"
    soup = ran(place, text, plugins)["soup"]
    assert not (soup / "training_state").exists()
    assert (
        load_file(soup / "model.safetensors").keys()
        == load_file(place / "base/model.safetensors").keys()
    )


def test_an_adapter_is_continued_on_its_base(place: Path, plugins: Plugins) -> None:
    lora = "backbone: {text_encoder: {lora: {rank: 2}}}"
    text = HEADS.replace("keep_state: true", f"keep_state: true, {lora}")
    text += NEXT.format(model="$first", more=f"{lora}, learning_rate: 0, keep_state: true")
    assert problems(place, text, plugins) == ""
    folders = ran(place, text, plugins)
    kept = [load_file(f / "training_state/tensors.safetensors") for f in folders.values()]
    factors = [name for name in kept[0] if name.startswith("model.")]
    assert any("lora_B" in name and kept[0][name].abs().max() > 0 for name in factors)
    assert all(kept[0][name].equal(kept[1][name]) for name in factors)


MISTAKES = {
    "a model that kept no state": (
        NEXT.format(model="./base", more="epochs: 1"),
        "keep_state: true in that training",
    ),
    "a step that keeps no state": (
        "  other:\n    train: {<<: *training, model: ./base, epochs: 2}\n"
        + NEXT.format(model="$other", more="epochs: 1"),
        "$other keeps no state",
    ),
    "a merge": (
        "  soup:\n    merge: {models: [$first, ./base], strategy: linear}\n"
        + NEXT.format(model="$soup", more="epochs: 1"),
        "$soup keeps no state",
    ),
    "other moments": (
        NEXT.format(model="$first", more="adam_beta2: 0.95"),
        "adam_beta2: 0.999, and this one has 0.95",
    ),
    "folded factors": (
        "  folded:\n    train: {<<: *training, model: ./base, keep_state: true, "
        "backbone: {text_encoder: {lora: {rank: 2, fold: true}}}}\n",
        "take fold out",
    ),
    "a window that is too long": (
        "  long:\n    train: {<<: *training, model: ./base, average: {steps: 6}}\n",
        "the training has 5 steps, fewer than its window of 6",
    ),
    "a window of fewer steps than every": (
        "  long:\n    train: {<<: *training, model: ./base, average: {steps: 3, every: 4}}\n",
        "lower every",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_before_anything_runs(
    mistake: str, place: Path, plugins: Plugins
) -> None:
    more, words = MISTAKES[mistake]
    found = problems(place, HEADS + more, plugins)
    assert words in found
    assert "recipe.yaml:" in found


def test_a_schedule_that_decays_is_doubted_with_what_it_costs(
    place: Path, plugins: Plugins
) -> None:
    text = HEADS.replace("schedule: constant", "schedule: linear")
    found = problems(place, text, plugins, "warning")
    assert "a second time" in found
    # Of a linear decay to 0, a mean over all of its end leaves two thirds.
    assert "33% less" in found
    assert problems(place, HEADS, plugins, "warning") == ""


def test_quantised_weights_are_refused_before_a_training(
    place: Path, bert: Path, plugins: Plugins
) -> None:
    shutil.copytree(bert, place / "quantised")
    path = place / "quantised/config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    path.write_text(json.dumps(config))
    found = problems(place, HEADS.replace("./base", "./quantised"), plugins)
    assert "quantised" in found


def test_the_decay_of_a_moving_average_belongs_to_it(place: Path, plugins: Plugins) -> None:
    text = HEADS.replace("share: 0.6", "share: 0.6, decay: 0.9")
    with pytest.raises(EmbergeError, match=r"recipe.yaml:\d+: .*`weights: ema`"):
        parse_recipe(text, plugins, path=place / "recipe.yaml")
    parse_recipe(text.replace("decay: 0.9", "weights: ema, decay: 0.9"), plugins)
