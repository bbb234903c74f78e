"""What is refused is what transformers refuses, and no stock config is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from emberge.model_folder.config_fields import field_faults

STOCK = ("bert", "xlm-roberta", "modernbert", "distilbert", "qwen3", "gemma3_text", "llama", "t5")


def stock(kind: str) -> dict[str, Any]:
    from transformers import CONFIG_MAPPING

    found: dict[str, Any] = json.loads(CONFIG_MAPPING[kind]().to_json_string(use_diff=False))
    return found


@pytest.mark.parametrize("kind", STOCK)
def test_no_stock_config_has_a_fault(kind: str) -> None:
    assert list(field_faults(stock(kind))) == []


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
def test_a_value_of_another_type_is_named_and_refused_by_the_library_too(
    field: str, value: Any, given: str
) -> None:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import BertConfig

    (fault,) = field_faults({**stock("bert"), field: value})
    assert fault.startswith(f"{field} is {given}, and bert takes ")
    with pytest.raises(StrictDataclassError):
        BertConfig(**{field: value})


def test_a_whole_number_may_stand_for_one_with_a_fraction() -> None:
    assert list(field_faults({"model_type": "bert", "hidden_dropout_prob": 0})) == []


@pytest.mark.parametrize("kind", ["no_such_type", "../bert", "", None, 3])
def test_a_class_that_is_not_known_has_no_faults(kind: Any) -> None:
    assert list(field_faults({"model_type": kind, "hidden_size": []})) == []
