"""Which tensor of one model is which of another, and of which layer; from names and shapes alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from emberge.errors import CheckpointError
from emberge.merging.checkpoint import Checkpoint
from emberge.merging.headers import TensorSpec

__all__ = [
    "HEAD",
    "Names",
    "canonical_names",
    "depths",
    "is_buffer",
    "is_vocabulary",
    "layer_of",
    "prefix_of",
]

HEAD = "lm_head.weight"
_EMBEDDINGS = (
    "embed_tokens.weight",
    "embeddings.word_embeddings.weight",
    "embeddings.tok_embeddings.weight",
)
_BUFFERS = ("position_ids", "token_type_ids", "inv_freq")
_LAYER = re.compile(r"(?:^|\.)(layers|layer|h|blocks)\.(\d+)\.")
# What may stand before the layers of a text trunk; any other word (`visual`) is a namespace of its own.
_TRUNK = frozenset({"", "encoder", "decoder", "transformer", "model"})
_FINAL = frozenset({"norm", "final_norm", "ln_f", "final_layernorm"})


@dataclass(frozen=True)
class Names:
    """One model's tensors under canonical names, and the prefix that was taken off."""

    prefix: str
    specs: Mapping[str, TensorSpec]

    def embedding(self) -> TensorSpec | None:
        """The input embedding, which is also the language head where both are tied."""
        for name in _EMBEDDINGS:
            if name in self.specs:
                return self.specs[name]
        return None


def prefix_of(names: Iterable[str]) -> str:
    """What stands before the text backbone's names: what precedes the one input embedding, else nothing."""
    found = [
        name.removesuffix(ending)
        for name in names
        for ending in _EMBEDDINGS
        if name == ending or name.endswith(f".{ending}")
    ]
    return found[0] if len(found) == 1 else ""


def canonical_names(checkpoint: Checkpoint) -> Names:
    """A checkpoint's tensors without their wrapper's prefix.

    Raises:
        CheckpointError: when two tensors would get one name.
    """
    modules = tuple(part for part in checkpoint.parts if part)
    trunk = [name for name in checkpoint.specs if not name.startswith(modules)]
    prefix = prefix_of(trunk)
    specs: dict[str, TensorSpec] = {}
    for name, spec in checkpoint.specs.items():
        short = name if modules and name.startswith(modules) else name.removeprefix(prefix)
        if short in specs:
            raise CheckpointError(
                f"{checkpoint.folder}: tensors '{specs[short].name}' and '{name}' are both '{short}' of "
                f"the backbone"
            )
        specs[short] = spec
    return Names(prefix, specs)


def is_buffer(name: str) -> bool:
    """Whether a tensor follows from the config and is never merged (`position_ids`, `inv_freq`)."""
    return name.rpartition(".")[2] in _BUFFERS


def is_vocabulary(name: str) -> bool:
    """Whether a tensor's rows are the vocabulary's tokens."""
    return name in _EMBEDDINGS or name == HEAD


def layer_of(name: str) -> str:
    """The layer of a canonical name: `layers.7`, `visual.blocks.3`, or a pseudo-layer.

    Pseudo-layers are `embeddings`, `final` (the last norm), and the first word of anything else (`pooler`,
    `2_Dense`, `lm_head`).
    """
    found = _LAYER.search(name)
    if found:
        space = name[: found.start()]
        label = f"layers.{found[2]}"
        return label if space in _TRUNK else f"{space}.{found[1]}.{found[2]}"
    first = name.partition(".")[0]
    if first.startswith(("embed", "wte", "wpe")):
        return "embeddings"
    return "final" if first in _FINAL else first


def depths(names: Iterable[str]) -> dict[str, float]:
    """Relative depth of each name: l / (L - 1) within its tower, and 0 outside the layers."""
    numbered: dict[str, tuple[str, int]] = {}
    heights: dict[str, int] = {}
    depth: dict[str, float] = {}
    for name in names:
        depth[name] = 0.0
        found = _LAYER.search(name)
        if found:
            tower, number = layer_of(name).rpartition(".")[0], int(found[2])
            numbered[name] = tower, number
            heights[tower] = max(heights.get(tower, 0), number)
    for name, (tower, number) in numbered.items():
        depth[name] = number / heights[tower] if heights[tower] else 0.0
    return depth
