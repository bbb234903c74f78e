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
    count_experts,
    count_parameters,
    describe_size_problems,
    read_modules,
    read_rope_options,
    read_settings,
)
from emberge.model_folder.model_config import read_class_defaults
from emberge.model_folder.st_layout import read_pooling_modes

from tests.support.model_headers import write_hole

CONFIG = {"model_type": "acme", "vocab_size": 10, "hidden_size": 4, "num_hidden_layers": 2}
SHAPES = {
    "embeddings.word_embeddings.weight": (10, 4),
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
        ({"num_hidden_layers": 1}, None),
        ({"num_hidden_layers": 3}, "has 3 layers, and the weights have 2"),
        ({"num_hidden_layers": 3, "model_type": "albert"}, None),
    ],
)
def test_sizes_are_of_the_tensors(
    config: dict[str, Any], fault: str | None, tmp_path: Path
) -> None:
    checkpoint = folder_of(tmp_path, {**CONFIG, **config}, SHAPES)
    found = list(describe_size_problems(checkpoint, checkpoint.names))
    assert [str(fault) in one for one in found] == [True] * (fault is not None), found
    if fault and fault.startswith("vocab_size"):
        assert list(describe_size_problems(checkpoint, checkpoint.names, vocabulary=False)) == []


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


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"path": "a/../b"}, "outside the model folder"),
        ({"path": "a\\b"}, "outside the model folder"),
        ({"type": 3}, "lacks a name, a path or a type"),
        ({"path": "1_P"}, None),
    ],
)
def test_modules_have_names_and_places(
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
    assert read_rope_options(old) == read_rope_options({"text_config": new})
    assert read_rope_options({"rope_scaling": {"type": "yarn", "factor": 2}}) == {
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


def test_pooling_has_one_word_for_the_words_and_flags_of_all_releases() -> None:
    assert read_pooling_modes({}) == ("mean",)
    assert read_pooling_modes({"pooling_mode": "lasttoken"}) == ("last",)
    assert read_pooling_modes({"pooling_mode": ["max", "median"]}) == ("max", "median")
    flags = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    assert read_pooling_modes(flags) == ("cls",)


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
        ({"n_routed_experts": 16}, 16),
        ({"text_config": {"num_experts": 3}}, 3),
        ({"hidden_size": 8}, 0),
    ],
)
def test_the_number_of_experts_has_several_names(config: dict[str, Any], experts: int) -> None:
    assert count_experts(config) == experts


@pytest.mark.parametrize("kind", ["xlm-roberta", "modernbert", "t5"])
def test_defaults_are_those_of_the_class(kind: str) -> None:
    stock, found = transformers.CONFIG_MAPPING[kind](), read_class_defaults(kind)
    sizes = found.keys() & {
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "d_model",
        "n_positions",
    }
    assert len(sizes) > 1
    assert {name: getattr(stock, name) for name in sizes} == {name: found[name] for name in sizes}


@pytest.mark.parametrize("kind", ["no_such_type", "../bert", None])
def test_a_class_that_is_not_known_has_no_defaults(kind: Any) -> None:
    assert read_class_defaults(kind) == {}
