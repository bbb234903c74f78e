"""Canonical names of tensors, by which those of several models match, and their layers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from emberge.errors import CheckpointError
from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.names.name_aliases import (
    EMBEDDINGS,
    HEAD,
    TIED,
    outer_prefix,
    prefix_of,
    usual_name,
)
from emberge.model_folder.names.task_heads import POOLER, head_of, heads_in, task_of
from emberge.tensor_files import TensorSpec

__all__ = [
    "HEAD",
    "LAYER",
    "Names",
    "canonical_names",
    "depths",
    "is_buffer",
    "is_outside_trunk",
    "is_vocabulary",
    "layer_number",
    "layer_of",
    "parts_as_in",
    "prefix_of",
    "text_trunk",
]

_EMBEDDED = frozenset({*EMBEDDINGS, "shared.weight"})
_BUFFERS = (
    *("position_ids", "token_type_ids", "inv_freq", "cos_cached", "sin_cached", "masked_bias"),
    *("num_batches_tracked", "stats_last_nonzero"),  # counters of a training
)
_VOCABULARY_BIAS = ("cls.predictions.bias", "lm_head.bias", "decoder.bias", "vocab_projector.bias")
LAYER = re.compile(r"(?:^|\.)(layers|layer|h|blocks|block|albert_layer_groups)\.(\d+)\.")
# Prefixes of the layers of a text trunk; any other word (`visual`) is a namespace of its own.
_TRUNK = frozenset({"", "encoder", "decoder", "transformer", "model"})
_FINAL = frozenset({"norm", "final_norm", "ln_f", "final_layernorm"})


@dataclass(frozen=True)
class Names:
    """One model's tensors under canonical names, and the prefix that was taken off.

    `outer` is the part of the prefix that a wrapper of training put there and no class would load; `heads`
    names the tensors of its task's head, and `task` the task (`ForMaskedLM`, "" for a plain model, None if
    unknown); `tied` is whether its language head is its input embedding, None without a word in its config.
    `left` names the tensors that are not taken, where only the text trunk is.
    """

    prefix: str
    specs: Mapping[str, TensorSpec]
    outer: str = ""
    heads: frozenset[str] = frozenset()
    task: str | None = None
    tied: bool | None = None
    left: tuple[str, ...] = ()

    def embedding(self) -> TensorSpec | None:
        """Return the input embedding, which is also the language head where both are tied."""
        return next((self.specs[name] for name in self.specs if name in _EMBEDDED), None)

    def original(self, name: str) -> TensorSpec | None:
        """Return the tensor that another is a copy of, by name and shape, where a model is tied."""
        target = TIED.get(name)
        if target is None:
            return None
        found = self.specs.get(target) if target else self.embedding()
        own = self.specs.get(name)
        return found if found and (own is None or own.shape == found.shape) else None

    def stands_for(self, name: str) -> TensorSpec | None:
        """Return the tensor to use for one that this model, being tied, has no copy of."""
        by_class = self.task != "" and self.tied is not False
        return self.original(name) if by_class or self.tied is True else None

    def shares_head(self, other: Names, name: str) -> bool:
        """Return whether both have the head that a tensor of the other belongs to, for the same task."""
        head = head_of(name)
        if not any(head_of(own) == head for own in self.heads):
            return self.stands_for(name) is not None
        alike = self.task == other.task or not self.task or not other.task
        return alike or head == POOLER

    def is_tied_copy(self, name: str) -> bool:
        """Return whether a tied model derives this tensor itself, or it is a head that only others have."""
        if name == HEAD:
            return self.tied is True or name not in self.specs
        copied = self.original(name) is not None
        return copied and (self.tied is not False or name not in self.specs)

    def out_name(self, spec: TensorSpec) -> str:
        """Return the name under which one of these tensors is stored in a result."""
        return spec.name.removeprefix(self.outer)


def canonical_names(checkpoint: Checkpoint) -> Names:
    """Return a checkpoint's tensors without their wrapper's prefix and by the names of today's releases.

    Raises:
        CheckpointError: when two tensors would get one name.
    """
    modules = tuple(part for part in checkpoint.parts if part)
    trunk = [n for n in checkpoint.specs if not (modules and n.startswith(modules))]
    outer = outer_prefix(trunk)
    prefix = outer + prefix_of(name.removeprefix(outer) for name in trunk)
    specs: dict[str, TensorSpec] = {}
    inside: list[str] = []
    outside: list[str] = []
    for name, spec in checkpoint.specs.items():
        if modules and name.startswith(modules):
            short = name
        else:
            short = usual_name(_below(name, prefix, outer))
            (inside if name.startswith(prefix) else outside).append(short)
        if short in specs:
            raise CheckpointError(
                f"{checkpoint.folder}: tensors '{specs[short].name}' and '{name}' are both '{short}' of "
                f"the backbone"
            )
        specs[short] = spec
    return Names(
        prefix,
        specs,
        outer=outer.partition("thinker.")[0],
        heads=heads_in(outside, inside, wrapped=prefix != outer),
        task=task_of(checkpoint.config),
        tied=checkpoint.config.get("tie_word_embeddings"),
    )


def text_trunk(names: Names, checkpoint: Checkpoint) -> Names:
    """Return the tensors of a model's text trunk; towers, projectors, heads and modules are `left`.

    Raises:
        CheckpointError: when the model has no input embedding or several, so that its trunk is not known.
    """
    if names.embedding() is None:
        raise CheckpointError(
            f"{checkpoint.folder}: has no single input embedding, by which its text trunk would be known; "
            "leave out 'part: text'"
        )
    left = [
        name
        for name in names.specs
        if name in names.heads or name == HEAD or is_outside_trunk(name, names, checkpoint)
    ]
    if not left:
        return names
    kept = {name: spec for name, spec in names.specs.items() if name not in left}
    return replace(
        names, specs=kept, heads=frozenset(), task="", tied=None, left=(*names.left, *left)
    )


def is_outside_trunk(name: str, names: Names, checkpoint: Checkpoint) -> bool:
    """Return whether a tensor is of a tower, a projector or a module, by canonical name."""
    modules = tuple(part for part in checkpoint.parts if part)
    return name.startswith(modules) or not names.specs[name].name.startswith(names.prefix)


def _below(name: str, prefix: str, outer: str) -> str:
    if name.startswith(prefix):
        return name.removeprefix(prefix)
    short = name.removeprefix(outer)
    # `model.visual.…` beside `model.language_model.…` is the `visual.…` of another class.
    return short.removeprefix("model.") if prefix.startswith(f"{outer}model.") else short


def is_buffer(name: str) -> bool:
    """Return whether a tensor follows from the config and is never merged (`position_ids`, `inv_freq`)."""
    return name.rpartition(".")[2] in _BUFFERS


def is_vocabulary(name: str) -> bool:
    """Return whether a tensor's rows are the vocabulary's tokens."""
    return name in _EMBEDDED or TIED.get(name) == "" or name in _VOCABULARY_BIAS


def layer_of(name: str) -> str:
    """Return the layer of a canonical name: `layers.7`, `visual.blocks.3`, or a pseudo-layer.

    Pseudo-layers are `embeddings`, `final` (the last norm), and the first word of anything else (`pooler`,
    `2_Dense`, `lm_head`).
    """
    found = LAYER.search(name)
    if found:
        space = name[: found.start()]
        label = f"layers.{found[2]}"
        return label if space in _TRUNK else f"{space}.{found[1]}.{found[2]}"
    first = name.partition(".")[0]
    if first.startswith(("embed", "wte", "wpe")):
        return "embeddings"
    return "final" if first in _FINAL else first


def layer_number(name: str) -> int | None:
    """Return the number of a tensor's layer in the text trunk, by canonical name; None outside the layers."""
    space, _, number = layer_of(name).rpartition(".")
    return int(number) if space == "layers" and number.isdecimal() else None


def depths(names: Iterable[str]) -> dict[str, float]:
    """Return the relative depth of each name: l / (L - 1) within its tower, and 0 outside the layers."""
    numbered: dict[str, tuple[str, int]] = {}
    heights: dict[str, int] = {}
    depth: dict[str, float] = {}
    for name in names:
        depth[name] = 0.0
        found = LAYER.search(name)
        if found:
            tower, number = layer_of(name).rpartition(".")[0], int(found[2])
            numbered[name] = tower, number
            heights[tower] = max(heights.get(tower, 0), number)
    for name, (tower, number) in numbered.items():
        depth[name] = number / heights[tower] if heights[tower] else 0.0
    return depth


def parts_as_in(names: Names, own: Checkpoint, template: Checkpoint) -> Names:
    """Return the names with modules named as in the template, whose n-th Dense is the other's n-th Dense."""
    theirs = dict(_numbered(template))
    renamed = {part: theirs.get(key, part) for key, part in _numbered(own)}
    if all(old == new for old, new in renamed.items()):
        return names
    specs = {}
    for name, spec in names.specs.items():
        part = next((p for p in renamed if name.startswith(p)), "")
        specs[renamed.get(part, "") + name.removeprefix(part)] = spec
    return replace(names, specs=specs)


def _numbered(checkpoint: Checkpoint) -> Iterator[tuple[tuple[str, int], str]]:
    """Yield (kind of a module with weights, number within its kind) and the prefix of its tensors."""
    counted: Counter[str] = Counter()
    for module in checkpoint.modules:
        if f"{module.path}." in checkpoint.parts:
            yield (module.kind, counted[module.kind]), f"{module.path}."
        counted[module.kind] += 1
