"""The longest text of a model: what its files state, and what its positions allow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from emberge import CheckpointError
from emberge.model_folder import TextLimit

SIZES = {
    **{"vocab_size": 99, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2},
    **{"intermediate_size": 8, "max_position_embeddings": 34, "embedding_size": 8, "ffn_dim": 8},
    **{"dim": 8, "hidden_dim": 8, "n_layers": 1, "n_heads": 2, "word_embed_proj_dim": 8},
}
GPT = {"n_positions": 34, "n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 99}
# Class, its config, and the number of tokens that it can compute.
CLASSES: list[tuple[str, dict[str, Any], int | None]] = [
    ("XLMRobertaModel", {}, 32),
    ("RobertaModel", {"pad_token_id": 5}, 28),
    ("MPNetModel", {"pad_token_id": 0}, 32),
    ("BertModel", {"pad_token_id": 3}, 34),
    ("OPTModel", {}, 34),
    ("GPT2Model", GPT, 34),
    ("DebertaV2Model", {"position_biased_input": False, "relative_attention": True}, None),
    ("Qwen3Model", {"num_key_value_heads": 1, "head_dim": 4}, None),
]


@pytest.mark.parametrize(("cls", "config", "positions"), CLASSES, ids=lambda value: str(value)[:24])
def test_the_limit_is_the_longest_text_that_the_class_can_embed(
    tmp_path: Path, cls: str, config: dict[str, Any], positions: int | None
) -> None:
    kind = getattr(transformers, cls)
    model = kind(kind.config_class(**(config if config is GPT else SIZES | config))).eval()
    model.save_pretrained(tmp_path)
    limit = TextLimit.read(tmp_path)
    assert (limit.positions, limit.stated) == (positions, 34)
    assert limit.longest == min(positions or 34, 34)
    with torch.no_grad():
        model(torch.full((1, limit.longest), 9))
        if positions is None:
            model(torch.full((1, 50), 9))
        elif cls != "OPTModel":  # whose table has two rows more than its config says
            with pytest.raises((IndexError, RuntimeError)):
                model(torch.full((1, positions + 1), 9))


@pytest.mark.parametrize(
    ("module", "tokenizer", "longest"),
    [
        ({"max_seq_length": 34}, {}, 32),
        ({"max_seq_length": 16}, {"model_max_length": 8}, 16),
        ({"max_seq_length": None}, {"model_max_length": 8}, 8),
        ({}, {"model_max_length": 8}, 8),
        ({}, {"model_max_length": int(1e30)}, 32),
        ({}, {}, 32),
    ],
)
def test_texts_are_cut_at_the_lesser_of_stated_length_and_positions(
    tmp_path: Path, module: dict[str, Any], tokenizer: dict[str, Any], longest: int
) -> None:
    config = transformers.XLMRobertaConfig(**SIZES)
    transformers.XLMRobertaModel(config).save_pretrained(tmp_path)
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps(module))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    limit = TextLimit.read(tmp_path)
    assert limit.longest == longest
    assert limit.describe_problems(None, 32) == []
    with pytest.raises(CheckpointError, match=r"config\.json: .* 32 tokens .* at most 32"):
        limit.require(7, None, 33)


def test_rotary_positions_do_not_limit_a_stated_length(tmp_path: Path) -> None:
    model = transformers.Qwen3Config(**SIZES, num_key_value_heads=1, head_dim=4)
    transformers.Qwen3Model(model).save_pretrained(tmp_path)
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 50}))
    limit = TextLimit.read(tmp_path)
    assert (limit.longest, limit.describe_problems(99)) == (50, [])
