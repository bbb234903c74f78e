"""Attention in configs: what they state, and the switch that each class has."""

from __future__ import annotations

from typing import Any

import pytest
from emberge import CheckpointError
from emberge_encoder import is_causal, read_declared_attention, switch_attention

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
    assert (is_causal(config), read_declared_attention(config)) == (causal, declared)


def test_each_class_has_its_own_switch_of_attention() -> None:
    qwen = {"model_type": "qwen3", "text_config": {"model_type": "qwen3"}}
    for attention in ("causal", "bidirectional"):
        changed = switch_attention(qwen, attention)
        assert changed["text_config"]["is_causal"] is (attention == "causal")
        assert read_declared_attention(changed) == attention
    assert switch_attention(qwen, "as is") == qwen
    assert switch_attention(GEMMA, "bidirectional") == {**GEMMA, SWITCH: True}
    assert switch_attention(GEMMA, "causal") == {**GEMMA, "is_causal": True, SWITCH: False}
    off = {**GEMMA, "is_causal": False}
    assert switch_attention(off, "bidirectional") == off, "it is bidirectional already"
    for config, said in (
        ({**GEMMA, "sliding_window": 7}, "window of 7 is odd"),
        ({**off, SWITCH: True}, "take is_causal out"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "is an encoder-decoder"),
    ):
        with pytest.raises(CheckpointError, match=said):
            switch_attention(config, "bidirectional")
