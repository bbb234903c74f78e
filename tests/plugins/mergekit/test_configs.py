"""Configs like those of mergekit's documentation: run by both, with the same result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from emberge.cli.main import main

from tests.plugins.mergekit.documented import CONFIGS, filled
from tests.plugins.mergekit.peer import (
    LAYERS,
    assert_same,
    check_against_mergekit,
    family,
    ours,
    quietly,
    state_of,
    theirs,
)
from tests.support import tiny
from tests.support.peft_adapters import save_adapter
from tests.support.tolerance import EXACT


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return family(tmp_path_factory.mktemp("llamas"))


@pytest.mark.parametrize("case", CONFIGS)
def test_a_config_gives_what_mergekit_gives(
    case: str, models: dict[str, Path], tmp_path: Path
) -> None:
    """In float64, which leaves no room for another formula."""
    check_against_mergekit(filled(CONFIGS[case], models, dtype="float64"), tmp_path, within=EXACT)


def test_an_adapter_is_merged_as_mergekit_merges_it(
    models: dict[str, Path], tmp_path: Path
) -> None:
    from transformers import LlamaForCausalLM

    with quietly():
        adapter = save_adapter(
            tmp_path / "lora", models["A"], model=LlamaForCausalLM, target_modules=["q_proj"]
        )
    text = filled(
        """
        models:
          - {model: A+LORA, parameters: {weight: 0.7}}
          - {model: B, parameters: {weight: 0.3}}
        base_model: BASE
        merge_method: task_arithmetic
        """,
        models,
    )
    check_against_mergekit(text.replace("+LORA", f"+{adapter}"), tmp_path)


def test_a_drawn_merge_has_the_moments_of_mergekits(
    models: dict[str, Path], tmp_path: Path
) -> None:
    """Other elements are dropped, but as many, and what is left is rescaled alike."""
    text = filled(
        """
        models: [{model: A, parameters: {weight: 1.0}}]
        base_model: BASE
        merge_method: dare_linear
        parameters: {density: 0.4}
        """,
        models,
    )
    base = state_of(models["BASE"])
    share, size = [], []
    for state in (state_of(ours(text, tmp_path)), state_of(theirs(text, tmp_path / "theirs"))):
        deltas = torch.cat([(state[name] - base[name]).flatten() for name in base])
        share.append(float((deltas.abs() > 1e-7).float().mean()))
        size.append(float(deltas.abs().sum()))
    assert share == pytest.approx([0.4, 0.4], abs=0.01)
    assert size[0] == pytest.approx(size[1], rel=1e-4)


def test_a_merge_of_embedding_models_stays_one(tmp_path: Path) -> None:
    """mergekit itself stops at BERT, and would keep no modules; a plain base gives none either."""
    from sentence_transformers import SentenceTransformer

    base = tiny.checkpoint(tmp_path / "base", sentence_transformer=False)
    for seed, name in enumerate("ab"):
        tiny.checkpoint(tmp_path / name, seed=seed, like=base)
    text = (
        "models: [{model: ./a}, {model: ./b}]\nbase_model: ./base\nmerge_method: ties\n"
        "parameters: {weight: 0.5, density: 0.6}\n"
    )
    made = ours(text, tmp_path)
    model = SentenceTransformer(str(made), device="cpu")
    assert [type(module).__name__ for module in model] == ["Transformer", "Pooling", "Normalize"]
    assert model.encode(["open the file"]).shape == (1, 32)


def test_merge_takes_a_config_and_leaves_the_model_alone(
    models: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yml"
    text = filled(CONFIGS["weighted mean"], models)
    config.write_text(text)
    assert main(["merge", str(config), "--out", str(tmp_path / "merged"), "--quiet"]) == 0
    assert_same(state_of(tmp_path / "merged"), state_of(theirs(text, tmp_path / "theirs")))
    assert not list(tmp_path.glob(".merged*"))
    assert main(["merge", str(config), "--strategy", "ties", "--out", str(tmp_path / "x")]) == 2
    assert "leave out --strategy" in capsys.readouterr().err


def test_folders_are_found_beside_the_config(models: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    for name in "AB":
        (tmp_path / "ours" / name.lower()).symlink_to(models[name])
    text = "models: [{model: a}, {model: ./b}]\nmerge_method: linear\nparameters: {weight: 1}\n"
    made = ours(text, tmp_path / "ours")
    mean = {n: (t + state_of(models["B"])[n]) / 2 for n, t in state_of(models["A"]).items()}
    assert_same(state_of(made), mean)
    assert json.loads((made / "config.json").read_text())["num_hidden_layers"] == LAYERS
