"""Tokenizer settings: the tokens, the embeddings and the model that mergekit makes."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from emberge import CheckpointError, RecipeError, parse_recipe
from emberge.architectures import Architecture, add_architecture
from emberge.cli.main import main
from emberge_mergekit.recipe.embeddings import Vocabulary
from torch import Tensor
from transformers import PreTrainedConfig

from tests.plugins.mergekit.peer import (
    assert_same,
    checked,
    llama,
    ours,
    plugins,
    quietly,
    state_of,
    theirs,
)
from tests.support.tolerance import assert_near

VOCABULARY = ("model.embed_tokens.weight", "lm_head.weight")
UNION = """
models:
  - {model: A, parameters: {weight: 0.4}}
  - {model: B, parameters: {weight: 0.6}}
merge_method: linear
base_model: A
dtype: float32
tokenizer_source: union
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A base, and two models that each added tokens to it, one of them the same."""
    root = tmp_path_factory.mktemp("vocabularies")
    base = llama(root / "base", num_hidden_layers=2)
    return {
        "BASE": base,
        "A": llama(root / "a", seed=1, like=base, added=("<|a|>", "<|both|>"), num_hidden_layers=2),
        "B": llama(
            root / "b", seed=2, like=base, added=("<|both|>", "<|b|>", "<|c|>"), num_hidden_layers=2
        ),
    }


def filled(text: str, models: dict[str, Path]) -> str:
    """A config with the models' folders in it."""
    for key, (name, folder) in itertools.product(("model", "source"), models.items()):
        text = re.sub(rf"{key}: {name}(?=[,}}\s])", f"{key}: {folder}", text)
    return dedent(text)


def tokenizer_of(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def rows_by_token(folder: Path, name: str) -> dict[str, Tensor]:
    """A tensor's rows by their tokens: mergekit's order of new tokens changes from process to process."""
    tensor = state_of(folder)[name]
    return {token: tensor[i] for token, i in tokenizer_of(folder).get_vocab().items()}


def check_against_mergekit(text: str, folder: Path) -> tuple[Path, Path]:
    made, other = ours(text, folder / "ours"), theirs(text, folder / "theirs")
    found, expected = state_of(made), state_of(other)
    for name in VOCABULARY:
        assert found[name].shape == expected[name].shape
        assert_same(rows_by_token(made, name), rows_by_token(other, name))
        size = len(tokenizer_of(other))
        assert_near(found[name][size:], expected[name][size:], addends=8)
    rest = [{k: v for k, v in state.items() if k not in VOCABULARY} for state in (found, expected)]
    assert_same(rest[0], rest[1])
    sizes = [json.loads((f / "config.json").read_text())["vocab_size"] for f in (made, other)]
    assert sizes[0] == sizes[1] == len(found[VOCABULARY[0]])
    return made, other


@pytest.mark.parametrize(
    "setting", ["tokenizer_source: union", "tokenizer_source: base", "tokenizer_source: B"]
)
def test_a_vocabulary_is_mergekits(setting: str, models: dict[str, Path], tmp_path: Path) -> None:
    text = UNION.replace("tokenizer_source: union", setting)
    check_against_mergekit(filled(text, models), tmp_path)


def test_slices_take_a_vocabulary_too(models: dict[str, Path], tmp_path: Path) -> None:
    text = """
    slices:
      - sources: [{model: A, layer_range: [0, 2]}, {model: B, layer_range: [0, 2]}]
      - sources: [{model: B, layer_range: [1, 2]}, {model: A, layer_range: [0, 1]}]
    merge_method: linear
    base_model: A
    dtype: float32
    parameters: {weight: 0.5}
    tokenizer_source: union
    """
    check_against_mergekit(filled(text, models), tmp_path)


def test_a_merge_with_another_vocabulary_loads_and_reads(
    models: dict[str, Path], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    made = ours(filled(UNION, models), tmp_path)
    with quietly(), torch.no_grad():
        tokenizer, model = tokenizer_of(made), AutoModelForCausalLM.from_pretrained(made)
        ids = tokenizer("list <|a|> <|c|> file", return_tensors="pt").input_ids
        assert model(ids).logits.shape[-1] == len(tokenizer)


def test_different_vocabularies_are_refused_without_a_word_on_them(
    models: dict[str, Path], tmp_path: Path
) -> None:
    text = filled(UNION, models).replace("tokenizer_source: union\n", "")
    with pytest.raises(RecipeError, match="have different tokenizers"):
        checked(text, tmp_path)


def test_what_can_be_checked_is_checked_before_the_vocabulary_is_made(
    models: dict[str, Path], tmp_path: Path
) -> None:
    text = filled(UNION, models).replace(
        "weight: 0.4", "weight: [{filter: mpl, value: 1}, {value: 0}]"
    )
    with pytest.raises(
        RecipeError, match=r"the filter 'mpl' of the weight of .* matches no tensor"
    ):
        checked(text, tmp_path)


def test_an_adapter_is_put_on_its_base_first(models: dict[str, Path], tmp_path: Path) -> None:
    from emberge_mergekit.recipe.translate import translate

    text = filled(UNION, models).replace(str(models["B"]), f"{models['B']}+me/lora")
    found = translate(text, tmp_path / "config.yml")
    assert found is not None
    made = found.text.splitlines()
    assert "  merged-model-0:" in made
    assert f"      models: [{models['B']}+me/lora]" in made
    assert f"      models: [{models['A']}, $merged-model-0]" in made
    assert "        - {model: $merged-model-0, weight: 0.6}" in made


WRONG = {
    "models: [./a], base: ./b": "'./b' is not among the models",
    "models: [./a], source: ./b": "'./b' is not among the models",
    "models: [./bare]": "'./bare' has no tokenizer",
}


@pytest.mark.parametrize("options", WRONG)
def test_a_wrong_option_of_the_step_is_said(
    options: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b", "bare"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        if name != "bare":
            (tmp_path / name / "tokenizer.json").write_text("{}")
    path = tmp_path / "r.yaml"
    path.write_text(f"steps:\n  v:\n    mergekit_vocabulary: {{{options}}}\n")
    assert main(["check", str(path)]) == 2
    said = capsys.readouterr().err
    assert f"{path}:3: " in said
    assert WRONG[options] in said


def test_a_vocabulary_has_its_own_tokenizer() -> None:
    text = (
        "steps:\n  v: {mergekit_vocabulary: {models: [me/a]}}\n"
        "  m: {merge: {models: [me/a], vocabulary: $v, tokenizer: me/a, strategy: passthrough}}\n"
    )
    with pytest.raises(RecipeError, match="leave out 'tokenizer' and 'template'"):
        parse_recipe(text, plugins())


class SomeConfig(PreTrainedConfig):
    """The config of a plugin's model; nothing but this test makes transformers know it."""

    model_type = "acme_vocabulary"


def test_the_config_of_a_plugins_model_is_read(models: dict[str, Path], tmp_path: Path) -> None:
    """A token without an embedding is found in a model of a plugin's type as in one of transformers'."""
    place = f"{__name__}:SomeConfig"
    add_architecture("test", SomeConfig.model_type, Architecture(config=place, model=place))
    tokens = len(tokenizer_of(models["A"]))
    for kind in ("llama", SomeConfig.model_type):
        folder = tmp_path / kind
        shutil.copytree(models["A"], folder)
        edited(folder / "config.json", model_type=kind, vocab_size=tokens - 1)
        with pytest.raises(CheckpointError, match=re.escape(str(folder))):
            Vocabulary.build({str(folder): folder}, "union", None)


def edited(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
