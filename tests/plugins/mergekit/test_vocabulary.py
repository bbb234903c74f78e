"""Tokenizer settings: the tokens, the embeddings and the model that mergekit makes."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.plugins.mergekit.peer import assert_same, llama, ours, quietly, state_of, theirs

VOCABULARY = ("model.embed_tokens.weight", "lm_head.weight")
BOTH = "<|both|>"
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


@pytest.mark.parametrize(("source", "clashing"), [("union", ""), ("base", BOTH), ("B", BOTH)])
def test_the_rows_of_tokens_are_mergekits(
    source: str, clashing: str, models: dict[str, Path], tmp_path: Path
) -> None:
    """A token that one of two models lacks has the other's row, there and here.

    With one model's tokenizer, a token with another id in the other model is not taken from that one here.
    """
    text = filled(UNION.replace("source: union", f"source: {source}"), models)
    made, other = ours(text, tmp_path / "ours"), theirs(text, tmp_path / "theirs")
    for name in VOCABULARY:
        found, expected = rows_by_token(made, name), rows_by_token(other, name)
        assert found.keys() == expected.keys()
        assert [
            t for t in expected if not torch.allclose(found[t], expected[t])
        ] == clashing.split()
    rest = [
        {k: v for k, v in state_of(folder).items() if k not in VOCABULARY}
        for folder in (made, other)
    ]
    assert_same(rest[0], rest[1])


def test_a_merge_with_another_vocabulary_loads_and_reads(
    models: dict[str, Path], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    made = ours(filled(UNION, models), tmp_path)
    with quietly(), torch.no_grad():
        tokenizer, model = tokenizer_of(made), AutoModelForCausalLM.from_pretrained(made)
        ids = tokenizer("list <|a|> <|c|> file", return_tensors="pt").input_ids
        assert model(ids).logits.shape[-1] == len(tokenizer)
