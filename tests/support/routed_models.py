"""Tiny models with routers: transformers' own, and dense encoders with experts, in float64 if wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from emberge import Backbone, load_plugins
from emberge.architectures import find_config_class
from emberge_moe import (
    FEED_FORWARD,
    EmbergeRoutedConfig,
    EmbergeRoutedForMaskedLM,
    EmbergeRoutedModel,
    Routed,
)

from tests.support import tiny
from tests.support.exact import ExactEncoder
from tests.support.json_files import edit

load_plugins(block=())  # ranks find our architecture too
find_config_class("emberge_routed")  # transformers alone loads it from here on

_COMMON = {
    **{
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
    },
    **{"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "max_position_embeddings": 66},
}
_STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_GROUPED = {"num_key_value_heads": 1, "head_dim": 8}
DENSE: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("bert", "xlm-roberta", "jina_embeddings_v3"), _STILL),
    "modernbert": {"cls_token_id": 2, "sep_token_id": 3, "local_attention": 8},
    "gemma3_text": {**_GROUPED, "sliding_window": 8, "use_bidirectional_attention": True},
}
_SPARSE = {"moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2}
NATIVE: Mapping[str, Mapping[str, Any]] = {
    "qwen3_moe": {**_GROUPED, **_SPARSE, "decoder_sparse_step": 2, "norm_topk_prob": True},
    "mixtral": {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
}


def _config(kind: str, size: int, **changes: Any) -> Any:
    given = {**_COMMON, **(DENSE | NATIVE)[kind], **changes}
    return transformers.CONFIG_MAPPING[kind](vocab_size=size, **given)


def _shaken(model: Any, seed: int) -> Any:
    torch.manual_seed(seed)
    return tiny.shaken(model, 0.2).eval()


def dense_model(kind: str, size: int = 60, *, seed: int = 0) -> Any:
    """A tiny dense model without a pooler."""
    config = _config(kind, size)
    cls = transformers.MODEL_MAPPING[type(config)]
    pooled = kind not in ("modernbert", "gemma3_text")
    return _shaken(cls(config, **({"add_pooling_layer": False} if pooled else {})), seed)


def routed_state(dense: Any, layers: list[int], experts: int) -> dict[str, torch.Tensor]:
    """The tensors of a dense model with every feed-forward block copied to experts, and random routers."""
    place = FEED_FORWARD[dense.config.model_type]
    state = dict(dense.state_dict())
    for layer in layers:
        above = f"{place.of(layer)}."
        parts = tuple(f"{above}{one}." for one in place.modules) or (above,)
        for name in [name for name in state if name.startswith(parts)]:
            value, below = state.pop(name), name.removeprefix(above)
            state |= {f"{above}experts.{e}.{below}": value.clone() for e in range(experts)}
        state[f"{above}router.weight"] = torch.randn(experts, dense.config.hidden_size)
    return state


def routed(
    folder: Path,
    kind: str = "bert",
    *,
    seed: int = 0,
    dense: Mapping[str, Any] | None = None,
    head: bool = False,
    **options: Any,
) -> Path:
    """Write a tiny encoder with experts that differ, in the layers 1 and 2 unless told otherwise.

    With `head` it predicts tokens.
    """
    folder.mkdir(parents=True)
    size = tiny.write_tokenizer(folder)
    given = {"routed_layers": [1, 2], "num_experts": 4, "top_k": 2, **options}
    config = EmbergeRoutedConfig(inner=_config(kind, size, **(dense or {})).to_dict(), **given)
    kind_of = EmbergeRoutedForMaskedLM if head else EmbergeRoutedModel
    _shaken(kind_of(config), seed).save_pretrained(folder)
    tiny.write_modules(folder, 16)
    return folder


def native(
    folder: Path,
    kind: str,
    *,
    seed: int = 0,
    experts: str = "eager",
    head: bool = False,
    **changes: Any,
) -> Path:
    """Write a tiny model of transformers with routers, with bidirectional attention and mean pooling.

    With `head` it predicts tokens.
    """
    folder.mkdir(parents=True)
    size = tiny.write_tokenizer(folder)
    config = _config(kind, size, **changes)
    loader = transformers.AutoModelForCausalLM if head else transformers.AutoModel
    _shaken(loader.from_config(config), seed).save_pretrained(folder)
    # Grouped products know no float64.
    edit(folder, "config.json", is_causal=False, experts_implementation=experts)
    tiny.write_modules(folder, 16)
    return folder


@dataclass(frozen=True, kw_only=True)
class ExactRouted(Routed):
    """The backbone `routed` with weights in float64."""

    inner: Backbone = field(default_factory=ExactEncoder)
