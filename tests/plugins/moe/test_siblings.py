"""Models of one upcycling merge; models of two upcyclings are refused before work."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from emberge import check_recipe, load_plugins, parse_recipe
from safetensors.torch import load_file, save_file

from tests.support.recipe_runs import run_checked
from tests.support.routable import dense

UPCYCLED = """
steps:
  one:
    upcycle: {model: ./dense, experts: 4, layers: all, seed: 1}
  other:
    upcycle: {model: ./dense, experts: 4, layers: all, seed: 2}
"""
MERGED = """
steps:
  merged:
    merge: {models: [./out/one, ./out/OTHER]}
"""


def upcycled(place: Path) -> None:
    dense(place / "dense", "bert")
    run_checked(place, UPCYCLED, load_plugins())


def problems(place: Path, other: str, merged: str = MERGED) -> list[str]:
    plugins, text = load_plugins(), merged.replace("OTHER", other)
    recipe = parse_recipe(text, path=place / "m.yaml", plugins=plugins)
    report = check_recipe(recipe, plugins=plugins)
    return [str(one) for one in report.problems if one.severity == "error"]


def test_models_that_were_upcycled_apart_are_refused_before_work(tmp_path: Path) -> None:
    upcycled(tmp_path)
    (found,) = problems(tmp_path, "other")
    # The place and the models.
    assert "m.yaml:4" in found
    assert "'one' and 'other' were upcycled apart" in found


def turned(source: Path, target: Path, seed: int) -> None:
    """Copy a model, its routers turned anywhere, as a training may."""
    shutil.copytree(source, target)
    tensors = load_file(target / "model.safetensors")
    torch.manual_seed(seed)
    for name in [name for name in tensors if name.endswith(".router.weight")]:
        tensors[name] = torch.randn_like(tensors[name])
    save_file(tensors, target / "model.safetensors", {"format": "pt"})


def test_models_of_one_upcycling_merge_after_any_training(tmp_path: Path) -> None:
    upcycled(tmp_path)
    out = tmp_path / "out"
    for name, source, seed in (("first", "one", 1), ("second", "one", 2), ("third", "other", 3)):
        turned(out / source, out / name, seed)
    merged = MERGED.replace("out/one", "out/first")
    assert problems(tmp_path, "second", merged) == []
    (apart,) = problems(tmp_path, "third", merged)
    assert "upcycled apart" in apart
