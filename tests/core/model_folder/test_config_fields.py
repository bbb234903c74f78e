"""What is refused is what transformers refuses, and no stock config is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from emberge.model_folder.config_fields import field_faults, module_faults

STOCK = ("bert", "xlm-roberta", "modernbert", "distilbert", "qwen3", "gemma3_text", "llama", "t5")


def stock(kind: str) -> dict[str, Any]:
    from transformers import CONFIG_MAPPING

    found: dict[str, Any] = json.loads(CONFIG_MAPPING[kind]().to_json_string(use_diff=False))
    return found


@pytest.mark.parametrize("kind", STOCK)
def test_no_stock_config_has_a_fault(kind: str) -> None:
    assert list(field_faults(stock(kind))) == []


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta", "modernbert", "qwen3", "t5"])
def test_the_class_of_a_stock_config_is_found_by_its_type(kind: str) -> None:
    (fault,) = field_faults({**stock(kind), "vocab_size": "many"})
    assert fault.startswith(f"vocab_size is text, and {kind} takes a whole number")


def test_items_of_a_list_have_types_and_whole_numbers_may_stand_for_others() -> None:
    config = {"model_type": "qwen3", "layer_types": ["full_attention", 3]}
    assert [fault.partition(" ")[0] for fault in field_faults(config)] == ["layer_types"]
    assert list(field_faults({"model_type": "bert", "hidden_dropout_prob": 0})) == []


POOLED = {"embedding_dimension": 8}


@pytest.mark.parametrize(
    ("kind", "config", "faults"),
    [
        ("Pooling", {**POOLED, "pooling_mode_cls_token": True}, []),
        ("Pooling", {"word_embedding_dimension": 8, "pooling_mode": "mean"}, []),
        ("Pooling", {}, ["embedding_dimension is missing, which Pooling needs"]),
        ("Pooling", {**POOLED, "pooling_mode_median": True}, ["'pooling_mode_median' is no"]),
        ("Pooling", {**POOLED, "include_prompt": 1}, ["include_prompt is a whole number, and"]),
        ("Transformer", {}, []),
        ("Transformer", {"max_seq_length": 8, "model_args": {}, "config_args": {}}, []),
        ("Transformer", {"model_name_or_path": "a"}, ["'model_name_or_path' is no option"]),
        ("Transformer", {"tokenizer_args": 1}, ["tokenizer_args is a whole number, and"]),
        ("Dense", {"in_features": 8, "out_features": 4, "anything": 1}, []),
        ("Normalize", {}, []),
        ("OfNextYear", {"anything": 1}, []),
    ],
)
def test_modules_have_a_classs_options(
    kind: str, config: dict[str, Any], faults: list[str]
) -> None:
    found = list(module_faults(kind, config))
    assert len(found) == len(faults), found
    assert all(one.startswith(start) for one, start in zip(found, faults, strict=True)), found


@pytest.mark.parametrize(
    ("field", "value", "given"),
    [
        ("attention_probs_dropout_prob", [0.0], "a list"),
        ("hidden_size", True, "true or false"),
        ("hidden_size", None, "null"),
        ("num_hidden_layers", 2.0, "a number"),
        ("hidden_act", 3, "a whole number"),
        ("use_cache", "yes", "text"),
        ("layer_norm_eps", {"a": 1}, "an object"),
    ],
)
def test_values_of_another_type_are_refused_as_libraries_do(
    field: str, value: Any, given: str
) -> None:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import BertConfig

    (fault,) = field_faults({**stock("bert"), field: value})
    assert fault.startswith(f"{field} is {given}, and bert takes ")
    with pytest.raises(StrictDataclassError):
        BertConfig(**{field: value})


@pytest.mark.parametrize("kind", ["no_such_type", "../bert", "", None, 3])
def test_a_class_that_is_not_known_has_no_faults(kind: Any) -> None:
    assert list(field_faults({"model_type": kind, "hidden_size": []})) == []
