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


TEXTS = {**CONFIGS, "adapter": ADAPTED, "vocabulary": VOCABULARY}


@pytest.mark.parametrize("case", TEXTS)
def test_a_config_means_the_recipe_that_is_printed(
    case: str, models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = converted(with_adapter(TEXTS[case], models), tmp_path, capsys)
    read = [load_recipe(path, plugins()) for path in paths]
    assert read[0].seed == read[1].seed
    steps = [[(one.id, one.step) for one in recipe.steps] for recipe in read]
    assert steps[0] == steps[1]
    assert steps[0]


def test_an_adapter_is_merged_as_mergekit_merges_it(
    models: dict[str, Path], tmp_path: Path
) -> None:
    check_against_mergekit(with_adapter(ADAPTED, models), tmp_path)
