"""A stranger's plugin is short, holds to the laws, type-checks, and runs beside an installed emberge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from emberge.cli.new_plugin import write_plugin

from tests.support import tiny
from tests.support.commands import python
from tests.support.installed import build_wheel, emberge, fresh_venv
from tests.support.sources import EXAMPLES, python_files
from tests.support.tolerance import near

EXAMPLE = EXAMPLES / "third_party_plugin"
RECIPE = """\
seed: 3
steps:
  members:
    foreach: {draw: [1, 2]}
    train:
      model: ./bert
      data: ./pairs.jsonl
      sampler:
        - bagging: {ratio: 0.6, draw: $draw}
        - batch_shuffle: {batch_size: 8}
      loss: {acme:uniformity: {spread: 0.5}}
      learning_rate: 1e-3
      max_steps: 4
  merged:
    merge: {models: $members, strategy: {acme:keep_norm: {strength: 1.0}}}
  small:
    acme:keep_layers: {model: $merged, layers: [2, 0]}
"""


def test_the_example_is_a_strategy_a_loss_and_a_step_in_under_140_lines() -> None:
    lines = [
        line
        for file in python_files(EXAMPLE / "emberge_acme")
        for line in file.read_text("utf-8").splitlines()
        if line.strip() and not line.strip().startswith("#")
    ]
    assert len(lines) < 140


@pytest.fixture(scope="module")
def acme(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository as `emberge new-plugin acme` writes it."""
    return write_plugin("acme", tmp_path_factory.mktemp("repository") / "emberge-acme")


@pytest.fixture(scope="module")
def installed(acme: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a fresh environment with the wheels of emberge and of the plugin."""
    plugin = build_wheel(acme, tmp_path_factory.mktemp("plugin_wheel"))
    return fresh_venv(tmp_path_factory.mktemp("fresh") / "venv", wheel, plugin)


@pytest.mark.slow
def test_a_recipe_trains_with_its_loss_and_merges_with_its_strategy(
    installed: Path, tmp_path: Path
) -> None:
    import torch
    from safetensors.torch import load_file

    listed = {
        line.split()[0] for line in emberge(installed, "list", cwd=tmp_path).splitlines() if line
    }
    assert {"keep_norm", "keep_norm_plain", "uniformity", "keep_layers"} <= listed
    assert "strength" in emberge(installed, "show", "acme:keep_norm", cwd=tmp_path)

    tiny.checkpoint(tmp_path / "bert")
    pairs = [
        {"query": f"{one} {two}", "pos": [f"the {two} of a {one}"]}
        for one, two in zip(tiny.WORDS, reversed(tiny.WORDS), strict=True)
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)) + "\n")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    emberge(installed, "check", "recipe.yaml", cwd=tmp_path)
    emberge(installed, "run", "recipe.yaml", "--out", "out", cwd=tmp_path)

    members = [load_file(tmp_path / f"out/members.draw={n}/model.safetensors") for n in (1, 2)]
    merged = load_file(tmp_path / "out/merged/model.safetensors")
    name = "encoder.layer.0.attention.self.query.weight"
    base = load_file(tmp_path / "bert" / "model.safetensors")[name]
    assert all(not torch.equal(member[name], base) for member in members), "the loss taught nothing"
    for name, tensor in merged.items():
        wanted = sum(float(member[name].double().norm()) for member in members) / 2
        assert float(tensor.double().norm()) == near(wanted, addends=tensor.numel())
    small = load_file(tmp_path / "out/small/model.safetensors")
    for new, old in ((0, 2), (1, 0)):
        for name in (n for n in small if f".layer.{new}." in n):
            assert torch.equal(small[name], merged[name.replace(f".{new}.", f".{old}.", 1)])


@pytest.mark.slow
def test_its_own_tests_pass_beside_the_installed_emberge(acme: Path, installed: Path) -> None:
    done = python(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", executable=installed / "python", cwd=acme
    )
    assert " passed" in done.stdout


@pytest.mark.slow
def test_it_type_checks_strictly_against_the_installed_emberge(acme: Path, installed: Path) -> None:
    cache = ("--cache-dir", str(acme / ".mypy_cache"))
    interpreter = ("--python-executable", str(installed / "python"))
    done = python("-m", "mypy", "--strict", *cache, *interpreter, "emberge_acme", cwd=acme)
    assert "Success" in done.stdout
