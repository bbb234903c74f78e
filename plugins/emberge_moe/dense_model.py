"""A dense model's feed-forward blocks, by the type of model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from emberge import CheckpointError
from emberge.model_folder import Checkpoint, TrunkConfig
from emberge.tensor_files import TensorSpec
from emberge.tensor_names import find_prefix

_MLP = r"((?:encoder\.)?layers\.(\d+)\.mlp\.)((?:gate_proj|up_proj|down_proj)\.\w+)"
_BERT = r"(encoder\.layer\.(\d+)\.)((?:intermediate|output)\.dense\.\w+)"

ROUTED_TYPE = "emberge_routed"
"""The model type of upcycled models."""
ROTARY_TYPE = "jina_embeddings_v3"
"""The model type of XLM-R with rotary positions, whose tensors have other names on disk than in memory."""
FUSED_NAME = ".mixer.Wqkv."
"""The part of the name on disk of a rotary model's one matrix of query, key and value."""

# Tensors of feed-forward blocks by model type: (block, number of the layer, name below the block), in the
# names that checkpoints have on disk, without the prefix that a head's class gives the backbone. The
# types are those of FEED_FORWARD in the code of routed models, which imports nothing of emberge.
BLOCKS = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta"), _BERT),
    **dict.fromkeys(("qwen3", "llama", "mistral", "eurobert", "granite", "gemma3_text"), _MLP),
    ROTARY_TYPE: r"((?:encoder\.)?layers\.(\d+)\.mlp\.)((?:fc1|fc2)\.\w+)",
    "modernbert": r"(layers\.(\d+)\.mlp\.)((?:Wi|Wo)\.\w+)",
}


@dataclass(frozen=True)
class FeedForwardBlock:
    """A layer's block: the path of its tensors on disk, and the tensors by their names below the path."""

    path: str
    tensors: dict[str, TensorSpec] = field(default_factory=dict)


@dataclass(frozen=True)
class DenseModel:
    """A dense checkpoint, and its feed-forward blocks if `require_dense` accepts it."""

    checkpoint: Checkpoint

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The transformer's config."""
        return self.checkpoint.config

    @property
    def model_type(self) -> str:
        """The config's `model_type`; "None" without one."""
        return str(self.config.get("model_type"))

    @cached_property
    def prefix(self) -> str:
        """The text before the names of the backbone's tensors, such as `bert.`."""
        return find_prefix(self.checkpoint.specs)

    @cached_property
    def depth(self) -> int:
        """The number of layers."""
        return int(self.config.get("num_hidden_layers") or 0)

    @cached_property
    def width(self) -> int:
        """The size of hidden states."""
        return int(self.config["hidden_size"])

    def find_block(self, name: str) -> tuple[int, str, str] | None:
        """Return (layer, path of the block, name below it) of a feed-forward tensor; None for another."""
        match = re.fullmatch(re.escape(self.prefix) + BLOCKS[self.model_type], name)
        return (int(match[2]), self.prefix + match[1], match[3]) if match else None

    @cached_property
    def blocks(self) -> Mapping[int, FeedForwardBlock]:
        """The feed-forward block of each layer."""
        by_layer: dict[int, FeedForwardBlock] = {}
        for name, spec in self.checkpoint.specs.items():
            block = self.find_block(name)
            if block is not None:
                layer, path, name_below = block
                by_layer.setdefault(layer, FeedForwardBlock(path)).tensors[name_below] = spec
        return by_layer

    def list_shapes(self, layer: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a layer's block, by the tensors' names below the block's path."""
        return {name: spec.shape for name, spec in self.blocks[layer].tensors.items()}


def require_dense(model: DenseModel) -> None:
    """Require a dense transformer whose type is in `BLOCKS`.

    Raises:
        CheckpointError: if the model has experts already, or its type is unknown.
    """
    folder = model.checkpoint.folder
    if model.model_type == ROUTED_TYPE or TrunkConfig(model.config).expert_count > 0:
        raise CheckpointError(
            f"{folder}: is routed already ({model.model_type}); upcycle the dense model"
        )
    if model.model_type not in BLOCKS:
        raise CheckpointError(
            f"{folder}: the feed-forward blocks of model type '{model.model_type}' are not known; those of "
            f"{', '.join(BLOCKS)} are"
        )
