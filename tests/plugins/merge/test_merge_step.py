"""The `merge` step: from a recipe to a model that loads."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from emberge import (
    Artifact,
    Model,
    Plugins,
    check_recipe,
    parse_recipe,
    run_recipe,
)
from emberge.merging import MergeRequest, merge_planning
from emberge_merge.steps.artifacts import add_sizes
from safetensors import safe_open
from safetensors.torch import load_file

from tests.support.fixture_types import Patch
from tests.support.recipe_runs import find_faults, run_checked
from tests.support.result_folders import artifact_of
from tests.support.tolerance import assert_combined


@pytest.fixture
def place(bert: Path, berts: list[Path], tmp_path: Path) -> Path:
    """A folder with a base, three models called a, b, c, and room for a recipe."""
    for name, folder in zip("abc", berts, strict=True):
        (tmp_path / name).symlink_to(folder)
    (tmp_path / "base").symlink_to(bert)
    return tmp_path


RECIPE = """
steps:
  merged:
    merge:
      base: ./base
      models:
        - {model: ./a, weight: [0.6, 0.2], name: falling}
        - {model: ./b, weight: [{filter: embeddings, value: 0}, {value: 0.5}]}
        - {model: ./c, weight: 0.3, options: {trim: {density: 0.7}}}
      strategy: [{trim: {density: 0.5}}, sign_consensus]
      rules: [{filter: LayerNorm, strategy: linear}]
"""


def test_a_recipe_becomes_a_model(
    place: Path, plugins: Plugins, bert: Path, berts: list[Path]
) -> None:
    folder = run_checked(place, RECIPE, plugins)["merged"]
    from sentence_transformers import SentenceTransformer

    assert SentenceTransformer(str(folder), device="cpu").encode("a file").shape == (32,)
    artifact = artifact_of(folder)
    assert artifact.kind == "model"
    assert artifact.parents == ("./a", "./b", "./c")
    details = artifact.details
    trim, consensus = details.strategy
    assert trim == {"trim": {"density": 0.5}}, "also the default of trim, not of ties"
    assert list(consensus) == ["sign_consensus"]
    assert details.model_options == {"./c": {"trim": {"density": 0.7}}}
    assert list(details.rules["LayerNorm"][0]) == ["linear"]
    assert artifact.base.name == "./base"
    assert list(details.weights) == ["./a", "./b", "./c"]
    assert details.tensors["merged"] == len(load_file(bert / "model.safetensors"))
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert json.loads(file.metadata()["emberge"])["step"] == "merged"
    norm = "embeddings.LayerNorm.weight"
    states = [load_file(f / "model.safetensors")[norm] for f in (*berts, folder)]
    assert_combined(states[3], states[:3], [2 / 3, 0, 1 / 3])


def test_models_have_the_number_of_layers_that_a_recipe_states(
    place: Path, plugins: Plugins
) -> None:
    stated = RECIPE.replace("base: ./base", "base: ./base\n      layers: 3")
    assert find_faults(place, stated, plugins) == ""
    more = find_faults(place, stated.replace("layers: 3", "layers: 4"), plugins)
    assert "has 3 layers, and the recipe states 4" in more


def sized(place: Path, name: str, size: int | None) -> None:
    folder = shutil.copytree((place / name).resolve(), place / f"{name}_sized")
    artifact = {"kind": "model", "size": size, "parents": [], "details": {}, "warnings": []}
    (folder / "artifact.json").write_text(json.dumps(artifact))


SIZED = """
steps:
  merged:
    merge: {models: [./a_sized, {model: ./b_sized, weight: 2}], weights: size, strategy: linear}
"""


def test_weights_by_size_multiply_given_ones(place: Path, plugins: Plugins) -> None:
    sized(place, "a", 300)
    sized(place, "b", 100)
    artifact = artifact_of(run_checked(place, SIZED, plugins)["merged"])
    assert artifact.size == 400
    assert artifact.details.weights == pytest.approx({"./a_sized": 0.6, "./b_sized": 0.4})
    assert artifact.details.weight_sum == pytest.approx(500)


def test_weights_by_size_need_sizes(place: Path, plugins: Plugins) -> None:
    sized(place, "a", 300)
    sized(place, "b", None)
    assert "number of examples that './b_sized' was trained on" in find_faults(
        place, SIZED, plugins
    )
    plain = SIZED.replace("./b_sized", "./b")
    assert "number of examples that './b' was trained on" in find_faults(place, plain, plugins)


def test_a_merge_of_a_step_yet_to_run_is_checked_as_far_as_it_goes(
    place: Path, plugins: Plugins
) -> None:
    text = """
steps:
  first:
    merge: {models: [./a, ./b], strategy: linear}
  merged:
    merge: {models: [$first, ./c], strategy: {slerp: {t: 0.25}}}
"""
    folder = run_checked(place, text, plugins)["merged"]
    a, b, c = (load_file(place / n / "model.safetensors") for n in "abc")
    name = "encoder.layer.1.output.dense.weight"
    first = (a[name] + b[name]) / 2
    found = load_file(folder / "model.safetensors")[name]
    straight = 0.75 * first + 0.25 * c[name]
    assert float((found - straight).norm() / straight.norm()) < 0.02
    artifact = artifact_of(folder)
    assert artifact.parents == ("$first", "./c")


def test_two_folders_of_one_name_are_told_apart(place: Path, plugins: Plugins) -> None:
    for side, name in (("x", "a"), ("y", "b")):
        (place / side).mkdir()
        shutil.copytree((place / name).resolve(), place / side / "model")
    text = "steps:\n  merged:\n    merge: {models: [./x/model, ./y/model], strategy: linear}\n"
    artifact = artifact_of(run_checked(place, text, plugins)["merged"])
    assert artifact.details.weights == {"./x/model": 0.5, "./y/model": 0.5}


def test_a_base_with_the_name_of_a_model_is_told_apart(place: Path, plugins: Plugins) -> None:
    base = shutil.copytree((place / "base").resolve(), place / "x" / "a")
    merge = "{models: [./a], base: ./x/a, strategy: {task_arithmetic: {scale: 2}}}"
    folder = run_checked(place, f"steps: {{merged: {{merge: {merge}}}}}", plugins)["merged"]
    name = "encoder.layer.1.output.dense.weight"
    a, b, merged = (load_file(f / "model.safetensors")[name] for f in (place / "a", base, folder))
    assert_combined(merged, [a, b], [2, -1])


def test_a_run_uses_the_plan_of_its_check_unless_weights_have_changed(
    place: Path, plugins: Plugins, monkeypatch: Patch
) -> None:
    plans: list[Any] = []
    read_headers = merge_planning._read_headers

    def count_plans(request: MergeRequest, *, needs_weights: bool) -> Any:
        plans.append(request)
        return read_headers(request, needs_weights=needs_weights)

    monkeypatch.setattr(merge_planning, "_read_headers", count_plans)
    changed = shutil.copytree((place / "b").resolve(), place / "d") / "model.safetensors"
    text = "steps: {merged: {merge: {models: [./a, ./d], strategy: linear}}}"
    recipe = parse_recipe(text, plugins, path=place / "recipe.yaml")
    report = check_recipe(recipe, plugins)

    def merge(out: str) -> bytes:
        results = run_recipe(recipe, place / out, plugins, checked=report, quiet=True)
        return (results["merged"].path / "model.safetensors").read_bytes()

    first = merge("first")
    assert len(plans) == 1
    os.utime(changed, ns=(1, 1))
    assert merge("second") == first
    assert len(plans) == 2


def test_examples_behind_models_are_summed_if_every_model_knows_its_own() -> None:
    def model(size: int | None) -> Model:
        return Model("some", Path(), "", Artifact("model", size))

    assert add_sizes([model(3), model(4)]) == 7
    assert add_sizes([model(3), model(None)]) is None
    assert add_sizes([Model("outside", Path(), "")]) is None
    assert add_sizes([]) is None
