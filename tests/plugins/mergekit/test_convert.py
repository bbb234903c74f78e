"""`emberge convert` prints the recipe that a config means: the same steps, and so the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from emberge import load_recipe
from emberge.cli.main import main

from tests.plugins.mergekit.documented import CONFIGS, filled
from tests.plugins.mergekit.peer import check_against_mergekit, family, plugins, quietly
from tests.support.peft_adapters import save_adapter

ADAPTED = """
    models:
      - {model: A+ADAPTER, parameters: {weight: 0.7}}
      - {model: B, parameters: {weight: 0.3}}
    base_model: BASE
    merge_method: task_arithmetic
"""
SEVERAL = """
    name: soup
    models: [{model: A}, {model: B}]
    merge_method: linear
    parameters: {weight: 0.5}
    ---
    slices:
      - sources: [{model: soup, layer_range: [0, 1]}]
      - sources: [{model: A, layer_range: [1, 4]}]
    merge_method: passthrough
"""
VOCABULARY = """
    models: [{model: A}, {model: B}]
    merge_method: linear
    parameters: {weight: 0.5}
    tokenizer: {source: union}
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The family, and an adapter of A."""
    from transformers import LlamaForCausalLM

    root = tmp_path_factory.mktemp("llamas")
    found = family(root)
    with quietly():
        save_adapter(
            root / "adapter", found["A"], model=LlamaForCausalLM, target_modules=["q_proj"]
        )
    return found


def with_adapter(text: str, models: dict[str, Path]) -> str:
    return filled(text, models).replace("+ADAPTER", f"+{models['A'].parent / 'adapter'}")


def converted(text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Path, Path]:
    """The config and what `convert` prints of it, as files side by side."""
    config, recipe = folder / "config.yml", folder / "recipe.yaml"
    config.write_text(text)
    assert main(["convert", str(config)]) == 0
    recipe.write_text(capsys.readouterr().out)
    return config, recipe


@pytest.mark.parametrize("case", CONFIGS)
def test_a_config_means_the_recipe_that_is_printed(
    case: str, models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = converted(filled(CONFIGS[case], models), tmp_path, capsys)
    read = [load_recipe(path, plugins()) for path in paths]
    assert read[0].seed == read[1].seed
    steps = [[(one.id, one.step) for one in recipe.steps] for recipe in read]
    assert steps[0] == steps[1]
    assert steps[0]


@pytest.mark.parametrize(
    "text", [ADAPTED, SEVERAL, VOCABULARY], ids=["adapter", "several", "vocabulary"]
)
def test_the_recipe_that_is_printed_makes_the_same_bytes(
    text: str, models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = []
    for path in converted(with_adapter(text, models), tmp_path, capsys):
        out = tmp_path / path.stem
        assert main(["run", str(path), "--out", str(out), "--quiet"]) == 0
        files = {f.name: f.read_bytes() for f in (out / "merged").iterdir() if f.is_file()}
        made.append({n: f for n, f in files.items() if n not in ("artifact.json", "README.md")})
    assert made[0] == made[1]
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= made[0].keys()


def test_an_adapter_is_merged_as_mergekit_merges_it(
    models: dict[str, Path], tmp_path: Path
) -> None:
    check_against_mergekit(with_adapter(ADAPTED, models), tmp_path)
