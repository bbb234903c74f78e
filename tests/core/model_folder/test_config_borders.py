"""Values of configs: the last that is accepted, the first that is refused, and the words of all releases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from emberge import CheckpointError
from emberge.model_folder import Checkpoint, ModelPair, TrunkConfig, read_settings
from emberge.model_folder.model_config import read_class_defaults
from emberge.model_folder.st_layout import read_pooling_modes


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        ({"query": None, "d": "x "}, {"query": "", "d": "x "}),
        (None, {}),
        ({"query": None}, {"query": ""}),
    ],
)
def test_a_null_prompt_is_an_empty_text(stored: Any, read: dict[str, str], tmp_path: Path) -> None:
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
def test_a_module_needs_a_name_a_type_and_a_path_inside_the_folder(
    changes: dict[str, Any], said: str | None, tmp_path: Path
) -> None:
    first = {"name": "0", "path": "", "type": "T"}
    listed = [first, {"name": "1", "path": "1_P", "type": "a.P", **changes}]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    if said is None:
        assert [module.kind for module in Checkpoint(tmp_path).modules] == ["T", "P"]
    else:
        with pytest.raises(CheckpointError, match=said):
            _ = Checkpoint(tmp_path).modules


def test_rope_options_of_all_releases_are_compared_in_one_form(tmp_path: Path) -> None:
    old = {"rope_theta": 1e4, "rope_scaling": {"type": "mrope", "mrope_section": [1, 2]}}
    new = {"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}
    assert TrunkConfig(old).rope == TrunkConfig({"text_config": new}).rope
    scaled = TrunkConfig({"rope_scaling": {"type": "yarn", "factor": 2}})
    assert scaled.rope == {"rope_type": "yarn", "factor": 2}
    sizes = {"model_type": "qwen3_vl_text", "hidden_size": 4}
    configs = ({**sizes, **old}, {**sizes, "model_type": "qwen3"}, {**sizes, "hidden_size": 5})
    for name, config in zip("abc", configs, strict=True):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    one, two, three = (Checkpoint(tmp_path / name) for name in "abc")
    missing = "the text config's rope_theta is 10000.0 in one and missing in the other"
    assert list(ModelPair(one, two).find_trunk_differences()) == [missing]
    assert list(ModelPair(one, two).find_trunk_differences(positions=False)) == []
    (width,) = ModelPair(two, three).find_trunk_differences()
    assert width == "the text config's hidden_size is 4 in one and 5 in the other"


def test_pooling_modes_of_all_releases_have_one_name_each() -> None:
    assert read_pooling_modes({}) == ("mean",)
    assert read_pooling_modes({"pooling_mode": "lasttoken"}) == ("last",)
    assert read_pooling_modes({"pooling_mode": ["max", "median"]}) == ("max", "median")
    flags = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    assert read_pooling_modes(flags) == ("cls",)


@pytest.mark.parametrize(
    ("config", "experts"),
    [
        ({"num_experts": 8}, 8),
        ({"n_routed_experts": 16}, 16),
        ({"text_config": {"num_experts": 3}}, 3),
        ({"hidden_size": 8}, 0),
    ],
)
def test_experts_are_counted_under_any_name_of_their_number(
    config: dict[str, Any], experts: int
) -> None:
    assert TrunkConfig(config).expert_count == experts


@pytest.mark.parametrize("kind", ["xlm-roberta", "modernbert", "t5"])
def test_class_defaults_are_read_without_importing_the_class(kind: str) -> None:
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
def test_an_unknown_model_type_has_no_defaults(kind: Any) -> None:
    assert TrunkConfig({"model_type": kind}).defaults == {}
