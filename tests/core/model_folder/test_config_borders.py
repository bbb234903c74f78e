"""Numbers and words of configs at their borders: the last that is taken, and the first that is not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import transformers
from emberge import CheckpointError
from emberge.model_folder import (
    Checkpoint,
    ModelPair,
    count_parameters,
    declared_attention,
    expert_count,
    is_causal,
    read_modules,
    read_settings,
    read_trunk_settings,
    rope_options,
    size_faults,
    with_attention,
)
from emberge.model_folder.classic_names import classic_module, find_new_type, pooling_modes

from tests.support.model_headers import write_hole

CONFIG = {"model_type": "acme", "vocab_size": 10, "hidden_size": 4, "num_hidden_layers": 2}
SHAPES = {
    "embeddings.word_embeddings.weight": (10, 4),
    "embeddings.position_embeddings.weight": (8, 4),
    "encoder.layer.0.intermediate.dense.weight": (6, 4),
    "encoder.layer.1.intermediate.dense.weight": (6, 4),
}


@pytest.mark.parametrize(
    ("config", "fault"),
    [
        ({}, None),
        ({"vocab_size": 9}, "vocab_size is 9, and 'embeddings.word_embeddings.weight' has 10 rows"),
        ({"vocab_size": 9, "pad_vocab_size_multiple": 5}, None),
        ({"vocab_size": 10, "pad_vocab_size_multiple": 4}, None),
        ({"vocab_size": 9, "pad_vocab_size_multiple": 0}, "vocab_size is 9"),
        ({"pad_token_id": 9}, None),
        ({"pad_token_id": 10}, "pad_token_id is 10, and there are 10 tokens"),
        ({"pad_token_id": -10}, None),
        ({"pad_token_id": -11}, "pad_token_id is -11, and there are 10 tokens"),
        ({"hidden_size": 5}, "hidden_size is 5, and the rows of"),
        ({"hidden_size": 5, "embedding_size": 4}, None),
        ({"num_hidden_layers": 1}, None),
        ({"num_hidden_layers": 3}, "num_hidden_layers is 3, and the weights have 2 layers"),
        ({"num_hidden_layers": 3, "model_type": "albert"}, None),
        ({"intermediate_size": 6, "max_position_embeddings": 8}, None),
        ({"intermediate_size": 7}, "intermediate_size is 7, and 'encoder.layer.0"),
        ({"max_position_embeddings": 9}, "max_position_embeddings is 9, and"),
        ({"num_attention_heads": 4}, None),
        ({"num_attention_heads": 3}, "hidden_size 4 is no multiple of num_attention_heads 3"),
        ({"num_attention_heads": 3, "head_dim": 2}, None),
        ({"num_attention_heads": 0}, "no multiple of num_attention_heads 0"),
        ({"attention_dropout": 1.0, "hidden_dropout_prob": 0}, None),
        ({"attention_dropout": 1.5}, "attention_dropout is 1.5; write a share from 0 to 1"),
        ({"resid_pdrop": -0.1}, "resid_pdrop is -0.1"),
    ],
)
def test_sizes_are_of_the_tensors(
    config: dict[str, Any], fault: str | None, tmp_path: Path
) -> None:
    checkpoint = folder_of(tmp_path, {**CONFIG, **config}, SHAPES)
    own = config.get("model_type") == "albert"
    found = [one for one in size_faults(checkpoint, checkpoint.names) if not own or "layers" in one]
    assert [str(fault) in one for one in found] == [True] * (fault is not None), found
    if fault and fault.startswith(("vocab_size", "pad_token_id")):
        assert list(size_faults(checkpoint, checkpoint.names, vocabulary=False)) == []


@pytest.mark.parametrize("length", [1, 8, 9, 2**31 - 1])
def test_texts_are_no_longer_than_the_table_of_positions(length: int, tmp_path: Path) -> None:
    (tmp_path / "sentence_roberta_config.json").write_text(json.dumps({"max_seq_length": length}))
    assert read_trunk_settings(tmp_path) == {"max_seq_length": length}
    checkpoint = folder_of(tmp_path, CONFIG, SHAPES)
    found = list(size_faults(checkpoint, checkpoint.names))
    assert [f"max_seq_length is {length:,}, and" in one for one in found] == [True] * (length > 8)


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        ({"query": None, "d": "x "}, {"query": "", "d": "x "}),
        (None, {}),
        ({"query": None}, {"query": ""}),
    ],
)
def test_a_prompt_of_null_is_none(stored: Any, read: dict[str, str], tmp_path: Path) -> None:
    settings = {"prompts": stored, "default_prompt_name": "query" if read else None}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    assert read_settings(tmp_path) == {**settings, "prompts": read}


def test_the_default_is_one_of_the_prompts(tmp_path: Path) -> None:
    for settings in ({"prompts": {"q": "q: "}, "default_prompt_name": "q"}, {"prompts": {}}):
        (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
        assert read_settings(tmp_path) == settings


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"path": "a" * 255}, None),
        ({"path": "a" * 256}, "is no name of a file"),
        ({"path": "é" * 128}, "is no name of a file"),
        ({"path": "a/../b"}, "outside the model folder"),
        ({"path": "a\\b"}, "outside the model folder"),
        ({"name": "a.b"}, "lacks a name of its own"),
        ({"name": ""}, "lacks a name of its own"),
        ({"name": "0"}, "lacks a name of its own"),
        ({"type": 3}, "lacks a name of its own, a path or a type"),
    ],
)
def test_modules_have_own_names_and_places(
    changes: dict[str, Any], said: str | None, tmp_path: Path
) -> None:
    first = {"name": "0", "path": "", "type": "T"}
    listed = [first, {"name": "1", "path": "1_P", "type": "a.P", **changes}]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    if said is None:
        assert [module.kind for module in read_modules(tmp_path)] == ["T", "P"]
    else:
        with pytest.raises(CheckpointError, match=said):
            read_modules(tmp_path)


def test_bases_of_rope_are_compared_in_one_form_for_all_releases(tmp_path: Path) -> None:
    old = {"rope_theta": 1e4, "rope_scaling": {"type": "mrope", "mrope_section": [1, 2]}}
    new = {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}
    assert rope_options(old) == rope_options({"text_config": new})
    assert rope_options({"rope_scaling": {"type": "yarn", "factor": 2}}) == {
        "rope_type": "yarn",
        "factor": 2,
    }
    sizes = {"model_type": "qwen3_vl_text", "hidden_size": 4}
    configs = ({**sizes, **old}, {**sizes, "model_type": "qwen3"}, {**sizes, "hidden_size": 5})
    for name, config in zip("abc", configs, strict=True):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    one, two, three = (Checkpoint(tmp_path / name) for name in "abc")
    missing = "the text config's rope_theta is 10000.0 in one and missing in the other"
    assert list(ModelPair(one, two).incomparable_trunks()) == [missing]
    assert list(ModelPair(one, two).incomparable_trunks(positions=False)) == []
    (width,) = ModelPair(two, three).incomparable_trunks()
    assert width == "the text config's hidden_size is 4 in one and 5 in the other"


GEMMA = {"model_type": "gemma3_text", "sliding_window": 8}
SWITCH = "use_bidirectional_attention"


@pytest.mark.parametrize(
    ("config", "causal", "declared"),
    [
        ({"model_type": "bert"}, False, "as is"),
        ({"model_type": "bert", "is_decoder": True}, True, "as is"),
        ({"model_type": "qwen3"}, True, "as is"),
        ({"model_type": "qwen3", "is_causal": False}, False, "bidirectional"),
        ({"model_type": "bert", "is_causal": True}, True, "causal"),
        ({"model_type": "qwen3", SWITCH: True}, True, "as is"),
        ({"model_type": "qwen3", SWITCH: "all"}, False, "bidirectional"),
        ({**GEMMA, SWITCH: True}, False, "bidirectional"),
        ({"model_type": "gemma3", "text_config": GEMMA}, True, "as is"),
        ({"model_type": "routed", "inner": {"model_type": "qwen3"}}, True, "as is"),
        ({"model_type": "t5", "is_encoder_decoder": True}, False, "as is"),
    ],
)
def test_configs_state_attention(config: dict[str, Any], causal: bool, declared: str) -> None:
    assert (is_causal(config), declared_attention(config)) == (causal, declared)


def test_each_class_has_its_own_switch_of_attention() -> None:
    qwen = {"model_type": "qwen3", "text_config": {"model_type": "qwen3"}}
    for attention in ("causal", "bidirectional"):
        changed = with_attention(qwen, attention)
        assert changed["text_config"]["is_causal"] is (attention == "causal")
        assert declared_attention(changed) == attention
    assert with_attention(qwen, "as is") == qwen
    assert with_attention(GEMMA, "bidirectional") == {**GEMMA, SWITCH: True}
    assert with_attention(GEMMA, "causal") == {**GEMMA, "is_causal": True, SWITCH: False}
    off = {**GEMMA, "is_causal": False}
    assert with_attention(off, "bidirectional") == off, "it is bidirectional already"
    for config, said in (
        ({**GEMMA, "sliding_window": 7}, "window of 7 is odd"),
        ({**off, SWITCH: True}, "take is_causal out"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "is an encoder-decoder"),
    ):
        with pytest.raises(CheckpointError, match=said):
            with_attention(config, "bidirectional")


NEW = "sentence_transformers.base.modules."
CLASSIC = "sentence_transformers.models."


@pytest.mark.parametrize(
    ("kind", "config", "classic"),
    [
        ("Dense", {"in_features": 2, "use_residual": False}, {"in_features": 2}),
        ("Dense", {"use_residual": True}, None),
        ("Dense", {"module_input_name": "token_embeddings"}, None),
        ("Normalize", {"module_output_name": "sentence_embedding"}, ...),
        ("Normalize", {"module_output_name": "token_embeddings"}, None),
        ("CNN", {"in_embedding_dimension": 2}, {"in_word_embedding_dimension": 2}),
        ("Pooling", {"pooling_mode": "median"}, None),
        ("Pooling", {"pooling_mode": "mean", "prompt_length": 3}, None),
        ("OfNextYear", {}, None),
        ("Transformer", {"max_seq_length": 8}, {"max_seq_length": 8}),
        ("Transformer", {"transformer_task": "sequence-classification"}, None),
        (
            "Transformer",
            {"transformer_task": "feature-extraction", "max_seq_length": 8, "model_args": None},
            {"do_lower_case": False, "max_seq_length": 8},
        ),
        ("Transformer", {"module_output_name": "sentence_embedding"}, None),
    ],
)
def test_modules_have_classic_names_if_old_releases_did_so(
    kind: str, config: dict[str, Any], classic: Any
) -> None:
    found = classic_module(f"{NEW}{kind.lower()}.{kind}", config)
    wanted = None if classic is None else (CLASSIC + kind, config if classic is ... else classic)
    assert found == wanted
    assert classic_module(f"acme.{kind}", config) == (f"acme.{kind}", config)


def test_pooling_has_one_word_for_the_words_and_flags_of_all_releases() -> None:
    assert pooling_modes({}) == ("mean",)
    assert pooling_modes({"pooling_mode": "lasttoken"}) == ("last",)
    assert pooling_modes({"pooling_mode": ["max", "median"]}) == ("max", "median")
    flags = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    assert pooling_modes(flags) == ("cls",)
    assert find_new_type("x.Dense") == f"{NEW}dense.Dense"
    assert find_new_type("x.LayerNorm") == "x.LayerNorm"


def folder_of(root: Path, config: Mapping[str, Any], shapes: Mapping[str, Any]) -> Checkpoint:
    """A model of these shapes, whose file has a header and no byte of weights on the disk."""
    write_hole(root / "model.safetensors", shapes)
    (root / "config.json").write_text(json.dumps(config))
    return Checkpoint(root)


TINY = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "vocab_size": 90,
}


EXPERTS = {
    "qwen3_moe": {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "decoder_sparse_step": 2,
        "head_dim": 8,
    },
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 1},
    "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
}


@pytest.mark.parametrize("kind", EXPERTS)
def test_parameters_are_counted_without_the_head(kind: str, tmp_path: Path) -> None:
    config = transformers.AutoConfig.for_model(kind, **TINY, **EXPERTS[kind])
    model = transformers.AutoModelForCausalLM.from_config(config)  # its head does not embed
    model.save_pretrained(tmp_path)
    total = sum(p.numel() for p in model.base_model.parameters())
    assert count_parameters(Checkpoint(tmp_path)) == total
    (tmp_path / "model.safetensors").unlink()
    assert count_parameters(Checkpoint(tmp_path)) == total, "by the config"


@pytest.mark.parametrize(
    ("config", "experts"),
    [
        ({"num_experts": 8}, 8),
        ({"num_local_experts": 4, "num_experts": None}, 4),
        ({"n_routed_experts": 16}, 16),
        ({"moe_num_experts": 6}, 6),
        ({"text_config": {"num_experts": 3}}, 3),
        ({"num_experts": 0}, 0),
        ({"hidden_size": 8}, 0),
    ],
)
def test_the_number_of_experts_has_several_names(config: dict[str, Any], experts: int) -> None:
    assert expert_count(config) == experts
