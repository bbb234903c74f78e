"""A config becomes a recipe that people can read, that says what differs, and that makes the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from emberge.cli.main import main
from emberge_mergekit.translate import translate

from tests.plugins.mergekit.peer import llama, plugins
from tests.support.commands import python

CONFIG = """\
# three models
merge_method: dare_ties
base_model: ./base
models:
  - model: ./base
    parameters: {weight: 1}
  - model: ./a
    parameters:
      weight: 0.6
      density: [0.4, 0.8]
  - model: ./b
    parameters: {weight: [{filter: mlp, value: 0.5}, {value: 0.1}]}
parameters:
  int8_mask: true
  lambda: 0.9
dtype: bfloat16
"""
RECIPE = """\
# From config.yml, a config of mergekit.
steps:
  merged:
    merge:
      models:
        - {model: ./a, weight: 0.6, options: {drop: {density: [0.4, 0.8]}}}
        - {model: ./b, weight: [{filter: mlp, value: 0.5}, {value: 0.1}]}
      base: ./base
      # elements are drawn at random: as many stay as with mergekit, but not the same ones
      # int8_mask saves mergekit memory and changes no result; it is left out
      # what is set for the base (weight) means nothing and is left out
      strategy:
        dare_ties:
          scale: 0.9
      # mergekit computes in bfloat16; here it is rounded to only once
      out_dtype: bfloat16
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    base = llama(root / "base", num_hidden_layers=2)
    for seed, name in enumerate("ab"):
        llama(root / name, seed=seed, like=base, num_hidden_layers=2)
    (root / "config.yml").write_text(CONFIG)
    return root


def test_convert_prints_a_recipe_that_makes_the_same_bytes(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(folder / "config.yml")]) == 0
    printed = capsys.readouterr().out
    assert printed == RECIPE
    (folder / "recipe.yaml").write_text(printed)
    files = []
    for name in ("config.yml", "recipe.yaml"):
        out = tmp_path / name
        assert main(["run", str(folder / name), "--out", str(out), "--quiet"]) == 0
        files.append((out / "merged" / "model.safetensors").read_bytes())
    assert files[0] == files[1]
    kept = [p.read_text() for p in (tmp_path / "config.yml").glob("*.yaml")]
    assert RECIPE in kept, "what stands in a result is our recipe"
    artifact = (tmp_path / "config.yml" / "merged" / "artifact.json").read_text()
    assert json.loads(artifact)["base"]["name"] == "./base"


def test_a_filter_of_a_head_that_a_model_lacks_is_no_problem(tmp_path: Path) -> None:
    for seed, name in enumerate("ab"):
        llama(tmp_path / name, seed=seed, num_hidden_layers=1, tie_word_embeddings=True)
    path = tmp_path / "config.yml"
    path.write_text(
        "models: [{model: ./a}, {model: ./b}]\nbase_model: ./a\nmerge_method: slerp\n"
        "parameters: {t: [{filter: lm_head, value: 0.1}, {value: 0.5}]}\n"
    )
    assert main(["check", str(path)]) == 0


@pytest.mark.parametrize(
    "text",
    [
        "steps: {merged: {merge: {models: [./a], strategy: passthrough}}}",
        "x-models: [a]\nsteps: {}",
        "- models: []",
        "merge: me",
        "",
        "models: [",
    ],
)
def test_a_text_that_is_no_config_is_not_translated(text: str) -> None:
    assert translate(text, None) is None


def test_hub_names_adapters_and_dollars_are_kept() -> None:
    text = (
        "models:\n  - {model: me/a@v1, parameters: {weight: 1}}\n"
        "  - {model: me/$b+me/lora@v2, parameters: {weight: 1}}\nmerge_method: linear\n"
    )
    found = translate(text, None)
    assert found is not None
    assert "- {model: me/a@v1, weight: 1.0}" in found
    assert "- {model: me/$$b+me/lora@v2, weight: 1.0}" in found


def test_the_long_form_of_a_name_is_the_short_one() -> None:
    text = (
        "models:\n"
        "  - model: {model: {path: me/a, revision: v1}, lora: {path: me/lora}}\n"
        "    parameters: {weight: 1}\nmerge_method: linear\n"
    )
    found = translate(text, None)
    assert found is not None
    assert "- {model: me/a@v1+me/lora, weight: 1.0}" in found


def test_the_plugin_adds_its_strategy() -> None:
    added = {(c.kind, c.name) for c in plugins().components if c.plugin == "mergekit"}
    assert added == {("merge strategy", "mergekit")}


def test_a_recipe_needs_no_translator() -> None:
    code = (
        "import sys; from emberge_mergekit.hooks import read_recipe\n"
        "ours = 'seed: 1\\nsteps:\\n  merged:\\n    merge:\\n      models: [./a, ./b]\\n'\n"
        "assert read_recipe(ours, None) is None\n"
        "print({'emberge_mergekit.translate', 'mergekit', 'torch'} & set(sys.modules))"
    )
    assert python("-c", code).stdout.strip() == "set()"
