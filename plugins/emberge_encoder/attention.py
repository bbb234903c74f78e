"""Causal and bidirectional attention: read from a config, switched in it, and probed in a model."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from emberge import CheckpointError

if TYPE_CHECKING:
    import torch

Attention = Literal["as is", "causal", "bidirectional"]


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the text part of a composite config, where alone the switch works; else the config itself.

    A routed model has its dense model's config as `inner`.
    """
    inner = config.get("text_config") or config.get("inner")
    return inner if isinstance(inner, Mapping) else config


def is_causal(config: Mapping[str, Any]) -> bool:
    """Return whether the model of this config attends to the past alone."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    text = text_config(config)
    kind = str(text.get("model_type", ""))
    if _gemma(kind) and text.get("use_bidirectional_attention"):
        return False
    if isinstance(text.get("is_causal"), bool):
        return bool(text["is_causal"])
    if kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        return bool(text.get("is_decoder"))
    return text is not config or kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or _gemma(kind)


def with_attention(config: Mapping[str, Any], attention: Attention) -> dict[str, Any]:
    """Return the config with attention switched, so that plain loaders of the saved folder obey it.

    The generic switch is `is_causal` of the text config; Gemma 3 has one of its own, which also halves its
    window when a model is built, and setting both would halve it wrongly.

    Raises:
        CheckpointError: for a Gemma 3 window that would not survive saving and loading.
    """
    changed = copy.deepcopy(dict(config))
    if attention == "as is":
        return changed
    text: Any = text_config(changed)
    if not _gemma(str(text.get("model_type", ""))):
        text["is_causal"] = attention == "causal"
        return changed
    window = text.get("sliding_window") or 0
    if attention == "bidirectional" and window % 2:
        raise CheckpointError(
            f"its sliding window of {window} is odd, and a bidirectional Gemma 3 halves it: "
            "make it even in config.json"
        )
    text.pop("is_causal", None)
    text["use_bidirectional_attention"] = attention == "bidirectional"
    return changed


def _gemma(kind: str) -> bool:
    return kind in ("gemma3_text", "gemma3")


def probe(model: Any, vocabulary: int) -> bool:
    """Return whether attention is bidirectional: whether the last token changes the state of the first."""
    import torch

    device = next(model.parameters()).device
    ids = torch.arange(1, 5, device=device)[None] % vocabulary
    other = ids.clone()
    other[0, -1] = (ids[0, -1] + 1) % vocabulary
    training = model.training
    model.eval()
    with torch.no_grad():
        first, second = (_first_state(model, i) for i in (ids, other))
    model.train(training)
    return not torch.equal(first, second)


def _first_state(model: Any, ids: torch.Tensor) -> torch.Tensor:
    import torch

    state: torch.Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids))[0][0, 0]
    return state
