"""A dense model's feed-forward blocks, found in a checkpoint by the names of its tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from emberge.model_folder import Checkpoint, expert_count
from emberge.tensor_files import TensorSpec
from emberge.tensor_names import prefix_of

_MLP = r"((?:encoder\.)?layers\.(\d+)\.mlp\.)((?:gate_proj|up_proj|down_proj)\.\w+)"
_BERT = r"(encoder\.layer\.(\d+)\.)((?:intermediate|output)\.dense\.\w+)"

# Tensors of feed-forward blocks by model type: (block, number of the layer, name below the block), in the
# names that checkpoints have on disk, without the prefix that a head's class gives the backbone.
BLOCKS = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta"), _BERT),
    **dict.fromkeys(("qwen3", "llama", "mistral", "eurobert", "granite", "gemma3_text"), _MLP),
    "jina_embeddings_v3": r"((?:encoder\.)?layers\.(\d+)\.mlp\.)((?:fc1|fc2)\.\w+)",
    "nomic_bert": r"((?:encoder\.)?layers\.(\d+)\.mlp\.)((?:fc11|fc12|fc2|gate_proj|up_proj|down_proj)\.\w+)",
    "modernbert": r"(layers\.(\d+)\.mlp\.)((?:Wi|Wo)\.\w+)",
}


def is_routed(config: Mapping[str, Any]) -> bool:
    """Return whether a config is that of a model with experts."""
    return config.get("model_type") == "emberge_routed" or expert_count(config) > 0


@dataclass(frozen=True)
class DenseModel:
    """A dense checkpoint: its config, its depth, and its tensors by block."""

    checkpoint: Checkpoint

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The transformer's config."""
        return self.checkpoint.config

    @property
    def kind(self) -> str:
        """The model type."""
        return str(self.config.get("model_type"))

    @cached_property
    def prefix(self) -> str:
        """The text before the names of the backbone's tensors, such as `bert.`."""
        return prefix_of(self.checkpoint.specs)

    @cached_property
    def depth(self) -> int:
        """The number of layers."""
        return int(self.config.get("num_hidden_layers") or 0)

    @cached_property
    def width(self) -> int:
        """The size of hidden states."""
        return int(self.config["hidden_size"])

    def block_of(self, name: str) -> tuple[int, str, str] | None:
        """Return (layer, path of the block, name below it) of a feed-forward tensor; None for another."""
        match = re.fullmatch(re.escape(self.prefix) + BLOCKS[self.kind], name)
        return (int(match[2]), self.prefix + match[1], match[3]) if match else None

    @cached_property
    def blocks(self) -> Mapping[int, tuple[str, Mapping[str, TensorSpec]]]:
        """The path of each layer's block and its tensors by their names below it, by layer."""
        by_layer: dict[int, tuple[str, dict[str, TensorSpec]]] = {}
        for name, spec in self.checkpoint.specs.items():
            block = self.block_of(name)
            if block is not None:
                layer, path, name_below = block
                by_layer.setdefault(layer, (path, {}))[1][name_below] = spec
        return by_layer
