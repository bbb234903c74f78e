"""Some of the base stays in the result: for every strategy, with adapters, and in all that a merge states."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from emberge import Plugins, check_recipe, parse_recipe, run_recipe
from emberge_merge.steps.merge_options import keep_base
from safetensors import safe_open
from safetensors.torch import load_file

from tests.support.merge_in_memory import merge_state_dicts
from tests.support.recipe_runs import find_faults
from tests.support.registered import CHAINS
from tests.support.result_folders import artifact_of
from tests.support.tolerance import assert_combined

KEEP = 0.25


@pytest.fixture
def place(bert: Path, berts: list[Path], tmp_path: Path) -> Path:
    """A folder with a base, three models called a, b, c, and room for a recipe."""
    for name, folder in zip("abc", berts, strict=True):
        (tmp_path / name).symlink_to(folder)
    (tmp_path / "base").symlink_to(bert)
    return tmp_path


def lines_and_result(place: Path, options: str, plugins: Plugins) -> tuple[str, Path]:
    text = f"steps:\n  merged:\n    {options}\n"
    recipe = parse_recipe(text, plugins, path=place / "recipe.yaml")
    report = check_recipe(recipe, plugins)
    assert not report.errors, report.errors
    plan = "\n".join(line for note in report.notes for line in note.lines)
    return plan, Path(run_recipe(recipe, place / "out", plugins, quiet=True)["merged"])


def faults(place: Path, options: str, plugins: Plugins) -> str:
    return find_faults(place, f"steps:\n  merged:\n    {options}\n", plugins)


def weights(folder: Path) -> Mapping[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("name", CHAINS)
def test_every_strategy_is_merged_back_with_the_base(name: str) -> None:
    """In float64 and with the base at hand, as a strategy that may use one does."""
    links, _ = CHAINS[name]
    torch.manual_seed(5)
    shapes = {"embeddings.weight": (9, 6), "layers.0.weight": (4, 6), "layers.0.bias": (6,)}
    base = {n: torch.randn(s, dtype=torch.float64) for n, s in shapes.items()}
    count = min(max(links[0].arity.start, 3), links[0].arity.stop - 1)
    models = [{n: t + 0.3 * torch.randn_like(t) for n, t in base.items()} for _ in range(count)]
    settings: dict[str, Any] = {"dtype": "float64", "groups": ["g"] * count}
    plain = merge_state_dicts(models, tuple(links), base, **settings)
    found = merge_state_dicts(models, keep_base(tuple(links), KEEP), base, **settings)
    for tensor, value in found.items():
        expected = KEEP * base[tensor] + (1 - KEEP) * plain[tensor]
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)


def test_the_option_keep_averages_the_result_with_the_base(place: Path, plugins: Plugins) -> None:
    options = (
        "merge: {models: [{model: ./a, weight: 3}, ./b], base: ./base, keep: 0.5, "
        "rules: [{filter: LayerNorm, strategy: karcher}]}"
    )
    plan, folder = lines_and_result(place, options, plugins)
    assert "keep_base (keep 0.5, by linear (normalize true)), around the base base" in plan
    assert "base  0.5" in plan
    a, b, base, found = map(weights, (place / "a", place / "b", place / "base", folder))
    name = "encoder.layer.0.attention.self.query.weight"
    assert_combined(found[name], [a[name], b[name], base[name]], [0.375, 0.125, 0.5])
    artifact = artifact_of(folder)
    assert artifact.details.keep == 0.5
    assert artifact.details.weights == pytest.approx({"./a": 0.375, "./b": 0.125, "./base": 0.5})
    with safe_open(folder / "model.safetensors", "pt") as file:
        header = json.loads(file.metadata()["emberge"])
    assert header["strategy"] == [
        {"keep_base": {"keep": 0.5, "by": {"linear": {"normalize": True}}}}
    ]
    assert header["base"]["weight"] == pytest.approx(0.5)


@pytest.mark.parametrize("keep", ["1", "1.5", "-0.1"])
def test_a_keep_outside_zero_to_one_is_refused(keep: str, place: Path, plugins: Plugins) -> None:
    text = faults(place, f"merge: {{models: [./a], base: ./base, keep: {keep}}}", plugins)
    assert "recipe.yaml:3: " in text
    assert "'keep'" in text
    chained = f"merge: {{models: [./a], base: ./base, strategy: {{keep_base: {{keep: {keep}}}}}}}"
    assert "'keep'" in faults(place, chained, plugins)


def test_keep_needs_a_base(place: Path, plugins: Plugins) -> None:
    text = faults(place, "merge: {models: [./a, ./b], keep: 0.5}", plugins)
    assert "recipe.yaml:3: " in text
    assert "name the model that these were trained from under 'base'" in text


def test_statistics_of_models_need_the_models(place: Path, plugins: Plugins) -> None:
    """A link that reads what was measured of the very models is found inside this one, too."""
    options = (
        "merge: {models: [{model: ./a, group: g}, {model: ./b, group: h}], base: ./base, keep: 0.5, "
        "strategy: [group, {regmean: {statistics: [./a]}}]}"
    )
    assert "'regmean' needs what was measured of the very models" in faults(place, options, plugins)
