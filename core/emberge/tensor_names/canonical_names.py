"""Canonical names of tensors, by which those of several models match."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from emberge.errors import CheckpointError
from emberge.tensor_files import TensorSpec
from emberge.tensor_names.name_aliases import (
    EMBEDDINGS,
    HEAD,
    TIED,
    outer_prefix,
    prefix_of,
    usual_name,
)
from emberge.tensor_names.task_heads import POOLER, head_of, heads_in, task_of

_EMBEDDED = frozenset({*EMBEDDINGS, "shared.weight"})
_BUFFERS = (
    *("position_ids", "token_type_ids", "inv_freq", "cos_cached", "sin_cached", "masked_bias"),
    *("num_batches_tracked", "stats_last_nonzero"),  # counters of a training
)
_VOCABULARY_BIAS = ("cls.predictions.bias", "lm_head.bias", "decoder.bias", "vocab_projector.bias")


@dataclass(frozen=True)
class Names:
    """One model's tensors under canonical names, and the prefix that was taken off.

    `outer` is the part of the prefix that a wrapper of training put there and no class would load; `heads`
    names the tensors of its task's head, and `task` the task (`ForMaskedLM`, "" for a plain model, None if
    unknown); `tied` is whether its language head is its input embedding, None without a word in its config.
    `left` names the tensors that are not taken, where only the text trunk is. `modules` are the prefixes of
    further modules' tensors (`2_Dense.`), and `folder` is the model's, for messages.
    """

    prefix: str
    specs: Mapping[str, TensorSpec]
    outer: str = ""
    heads: frozenset[str] = frozenset()
    task: str | None = None
    tied: bool | None = None
    left: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    folder: Path = Path()

    @classmethod
    def of(
        cls,
        stored: Mapping[str, TensorSpec],
        *,
        modules: tuple[str, ...],
        config: Mapping[str, Any],
        folder: Path,
    ) -> Names:
        """Return tensors without their wrapper's prefix and by the names of today's releases.

        Raises:
            CheckpointError: when two tensors would get one name.
        """
        trunk = [n for n in stored if not (modules and n.startswith(modules))]
        outer = outer_prefix(trunk)
        prefix = outer + prefix_of(name.removeprefix(outer) for name in trunk)
        specs: dict[str, TensorSpec] = {}
        inside: list[str] = []
        outside: list[str] = []
        for name, spec in stored.items():
            if modules and name.startswith(modules):
                short = name
            else:
                short = usual_name(_remove_prefix(name, prefix, outer))
                (inside if name.startswith(prefix) else outside).append(short)
            if short in specs:
                raise CheckpointError(
                    f"{folder}: tensors '{specs[short].name}' and '{name}' are both '{short}' of "
                    f"the backbone"
                )
            specs[short] = spec
        return cls(
            prefix,
            specs,
            outer=outer.partition("thinker.")[0],
            heads=heads_in(outside, inside, wrapped=prefix != outer),
            task=task_of(config),
            tied=config.get("tie_word_embeddings"),
            modules=modules,
            folder=folder,
        )

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

    def is_outside_trunk(self, name: str) -> bool:
        """Return whether a tensor is of a tower, a projector or a module, by canonical name."""
        return name.startswith(self.modules) or not self.specs[name].name.startswith(self.prefix)

    def text_trunk(self) -> Names:
        """Return the tensors of the text trunk; towers, projectors, heads and modules are `left`.

        Raises:
            CheckpointError: when the model has no input embedding or several, so that its trunk is not known.
        """
        if self.embedding() is None:
            raise CheckpointError(
                f"{self.folder}: has no single input embedding, by which its text trunk would be known; "
                "leave out 'part: text'"
            )
        left = [
            name
            for name in self.specs
            if name in self.heads or name == HEAD or self.is_outside_trunk(name)
        ]
        if not left:
            return self
        trunk = {name: spec for name, spec in self.specs.items() if name not in left}
        return replace(
            self, specs=trunk, heads=frozenset(), task="", tied=None, left=(*self.left, *left)
        )

    def out_name(self, spec: TensorSpec) -> str:
        """Return the name under which one of these tensors is stored in a result."""
        return spec.name.removeprefix(self.outer)


def _remove_prefix(name: str, prefix: str, outer: str) -> str:
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
