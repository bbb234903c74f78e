"""The `find_weights` step: from a recipe to weights that a merge takes, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from emberge import (
    EmbergeError,
    Machine,
    Plugins,
    check_recipe,
    load_plugins,
    parse_recipe,
    run_recipe,
)
from emberge.engine import FoundWeights, model_fingerprint
from safetensors.torch import load_file, save_file

from tests.plugins.weights.places import write_sets
from tests.support import tiny
from tests.support.tolerance import assert_combined

RECIPE = """
steps:
  found:
    find_weights:
      models: [./a, ./b, ./c]
      base: ./base
      data: {path: ./sets, only: [asked, likeness, same]}
      candidates: 60
  merged:
    merge: {models: [./base, ./a, ./b, ./c], weights: $found}
"""


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return load_plugins(block=())


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sets(tmp_path_factory.mktemp("sets")).parent


@pytest.fixture
def place(bert: Path, berts: list[Path], sets: Path, tmp_path: Path) -> Path:
    """A folder with a base, three models called a, b, c, and sets."""
    for name, folder in zip("abc", berts, strict=True):
        (tmp_path / name).symlink_to(folder)
    (tmp_path / "base").symlink_to(bert)
    (tmp_path / "sets").symlink_to(sets)
    return tmp_path


def faults(place: Path, text: str, plugins: Plugins) -> str:
    try:
        report = check_recipe(parse_recipe(text, plugins, path=place / "recipe.yaml"), plugins)
    except EmbergeError as error:
        return str(error)
    return "\n".join(str(problem) for problem in report.errors)


def run(place: Path, text: str, plugins: Plugins) -> dict[str, Path]:
    recipe = parse_recipe(text, plugins, path=place / "recipe.yaml")
    report = check_recipe(recipe, plugins)
    assert not report.errors, report.errors
    return dict(run_recipe(recipe, place / "out", plugins, machine=Machine(), quiet=True))


def test_what_is_found_is_what_a_merge_takes(
    place: Path, plugins: Plugins, bert: Path, berts: list[Path]
) -> None:
    results = run(place, RECIPE, plugins)
    found = FoundWeights.read(results["found"])
    assert sum(found.weights.values()) == pytest.approx(1)
    weights = [found.weights[model_fingerprint(folder)] for folder in (bert, *berts)]
    norm = "embeddings.LayerNorm.weight"
    states = [load_file(f / "model.safetensors")[norm] for f in (bert, *berts, results["merged"])]
    assert_combined(states[-1], states[:-1], weights)
