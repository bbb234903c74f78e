"""Names of tensors: their canonical form, the layer and part that they belong to, tied copies, and heads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from emberge.errors import CheckpointError
from emberge.tensor_files import TensorSpec

EMBEDDING_LAYER, FINAL_LAYER = "embeddings", "final"
# Prefixes of the layers of a text trunk; any other prefix (`visual`) belongs to another tower.
_TRUNK_PREFIXES = frozenset({"", "encoder", "decoder", "transformer", "model"})
_FINAL_NORMS = frozenset({"norm", "final_norm", "ln_f", "final_layernorm"})
LAYER_PATTERN = re.compile(r"(?:^|\.)(layers|layer|h|blocks|block|albert_layer_groups)\.(\d+)\.")
HEAD = "lm_head.weight"
# Ends of an input embedding's name, the most certain first.
_EMBEDDING_ENDINGS = (
    "embed_tokens.weight",
    "embeddings.word_embeddings.weight",
    "embeddings.tok_embeddings.weight",
    "embeddings.token_embedding.weight",
    "word_embeddings.weight",
    "embed_in.weight",
    "wte.weight",
)
_SHARED_NAME = "shared.weight"  # T5's embedding, which encoder and decoder may have copies of
PEFT_PREFIX = "base_model.model."
"""Prefix that peft adds to the names of an adapter's tensors."""
# Prefixes that training and saving add to all names. No class loads such names, so no result has them.
_OUTER_PREFIXES = (
    *(PEFT_PREFIX, "_orig_mod.", "_forward_module.", "module."),
    *("0.auto_model.", "0.model."),
)
# `_OUTER_PREFIXES`, and the prefix that classes of models with more than text add to all names.
_WRAPPERS = (*_OUTER_PREFIXES, "thinker.")
# Maps each copy that a tied model may lack on disk to the tensor it copies ("": the embedding).
TIED_NAMES: Mapping[str, str] = {
    HEAD: "",
    "cls.predictions.decoder.weight": "",
    "lm_head.decoder.weight": "",
    "decoder.weight": "",
    "vocab_projector.weight": "",
    "encoder.embed_tokens.weight": "",
    "decoder.embed_tokens.weight": "",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
    "lm_head.decoder.bias": "lm_head.bias",
}
_NORM_PARAMETER = re.compile(r"(LayerNorm|layer_norm)\.(gamma|beta)$")
_USUAL_PARAMETER = {"gamma": "weight", "beta": "bias"}
_EMBEDDING_NAMES = frozenset({*_EMBEDDING_ENDINGS, _SHARED_NAME})
_BUFFER_NAMES = (
    *("position_ids", "token_type_ids", "inv_freq", "cos_cached", "sin_cached", "masked_bias"),
    *("num_batches_tracked", "stats_last_nonzero"),  # counters of a training
)
_VOCABULARY_BIAS = ("cls.predictions.bias", "lm_head.bias", "decoder.bias", "vocab_projector.bias")
# First words of heads' names, by which heads are recognised if the backbone's names have no prefix.
_KNOWN_HEADS = frozenset(
    {
        *("cls", "classifier", "pre_classifier", "score", "qa_outputs", "linear", "lm_head"),
        *("predictions", "vocab_transform", "vocab_layer_norm", "vocab_projector"),
        *("generator_predictions", "generator_lm_head", "discriminator_predictions"),
    }
)
POOLER = "pooler"
_DECODER_HEAD = "decoder"
# Heads whose numbers no embedding depends on: poolers, language heads, and an encoder's decoder.
_UNUSED_HEADS = _KNOWN_HEADS - {"classifier", "pre_classifier", "score", "qa_outputs", "linear"} | {
    *("cls.predictions", "cls.seq_relationship", POOLER, _DECODER_HEAD),
    "head",  # ModernBERT's
}
# Words in names of parts that models with more than text have; a complete model has all of them.
_TOWER_WORDS = (
    *("tower", "vision", "visual", "audio", "projector", "merger", "talker", "image", "code2wav"),
)
_NUMBERED_LAYER = re.compile(r"\b(layers?|h|blocks?)\.\d+\.")
_TASK_ENDING = re.compile(r"(For[A-Z]\w*|LMHeadModel|WithProjection)$")
_CAPITAL = re.compile(r"[A-Z]")
_TASK_ALIASES = {"ForPreTraining": "ForMaskedLM"}  # `ForPreTraining` has one more head


def find_layer(name: str) -> str:
    """Return the layer of a tensor by its canonical name: `layers.7`, `visual.blocks.3`, or a pseudo-layer.

    Pseudo-layers are `embeddings`, `final` (the last norm), and for every other tensor the first word of its
    name (`pooler`, `2_Dense`, `lm_head`).
    """
    match = LAYER_PATTERN.search(name)
    if match:
        tower = name[: match.start()]
        label = f"layers.{match[2]}"
        return label if tower in _TRUNK_PREFIXES else f"{tower}.{match[1]}.{match[2]}"
    first = name.partition(".")[0]
    if first.startswith(("embed", "wte", "wpe")):
        return EMBEDDING_LAYER
    return FINAL_LAYER if first in _FINAL_NORMS else first


def find_layer_number(name: str) -> int | None:
    """Return the number of a tensor's layer in the text trunk, by canonical name; None outside the layers."""
    tower, _, number = find_layer(name).rpartition(".")
    return int(number) if tower == "layers" and number.isdecimal() else None


def measure_depths(names: Iterable[str]) -> dict[str, float]:
    """Return each name's relative depth: l / (L - 1) in layer l of a tower of L layers, else 0."""
    layer_by_name: dict[str, tuple[str, int]] = {}
    last_layer_by_tower: dict[str, int] = {}
    depth_by_name: dict[str, float] = {}
    for name in names:
        depth_by_name[name] = 0.0
        match = LAYER_PATTERN.search(name)
        if match:
            tower, number = find_layer(name).rpartition(".")[0], int(match[2])
            layer_by_name[name] = tower, number
            last_layer_by_tower[tower] = max(last_layer_by_tower.get(tower, 0), number)
    for name, (tower, number) in layer_by_name.items():
        last_layer = last_layer_by_tower[tower]
        depth_by_name[name] = number / last_layer if last_layer else 0.0
    return depth_by_name


def _find_outer_prefix(names: Sequence[str]) -> str:
    """Return the prefix that wrappers put before each of the names."""
    prefix = ""
    while names:
        wrapper = next((w for w in _WRAPPERS if all(n.startswith(prefix + w) for n in names)), None)
        if wrapper is None:
            break
        prefix += wrapper
    return prefix


def find_prefix(names: Iterable[str]) -> str:
    """Return the prefix of the text backbone's names, by the only input embedding; "" without exactly one."""
    names = list(names)
    for ending in (_SHARED_NAME, *_EMBEDDING_ENDINGS):
        prefixes = [
            n.removesuffix(ending) for n in names if n == ending or n.endswith(f".{ending}")
        ]
        if prefixes:
            return prefixes[0] if len(prefixes) == 1 else ""
    return ""


def modernise_name(name: str) -> str:
    """Return the name that current releases of transformers give a tensor of the backbone."""
    if name.endswith(f".{HEAD}"):
        return HEAD
    return _NORM_PARAMETER.sub(lambda match: f"{match[1]}.{_USUAL_PARAMETER[match[2]]}", name)


def _find_task(config: Mapping[str, Any]) -> str | None:
    """Return the task of a saved model's class: `ForMaskedLM`, "" for a plain model, None if unknown."""
    listed = config.get("architectures")
    if not isinstance(listed, list) or not listed or not _CAPITAL.match(str(listed[0])):
        return None
    match = _TASK_ENDING.search(str(listed[0]))
    return _TASK_ALIASES.get(match[1], match[1]) if match else ""


def find_head(name: str) -> str:
    """Return the head that a tensor of a head belongs to, with two words for BERT's (`cls.predictions`)."""
    first, _, inner = name.partition(".")
    return f"{first}.{inner.partition('.')[0]}" if first == "cls" else first


def _find_heads(
    outside: Sequence[str], inside: Sequence[str], *, has_prefix: bool
) -> frozenset[str]:
    """Return the canonical names of the tensors of task heads, and of an encoder's decoder.

    `inside` are the names that had the backbone's prefix, and `outside` those that had not. If the backbone
    has no prefix (`has_prefix` is False), all names are in `inside`.
    """
    heads = {name for name in inside if find_head(name) == POOLER}
    if any(name.startswith("encoder.") for name in inside):
        heads |= {name for name in inside if find_head(name) == _DECODER_HEAD}
    if not has_prefix:
        heads |= {name for name in inside if find_head(name).partition(".")[0] in _KNOWN_HEADS}
        return frozenset(heads)
    layered_heads = {find_head(name) for name in outside if _NUMBERED_LAYER.search(name)}
    for name in outside:
        head = find_head(name)
        if head not in layered_heads and not any(word in head for word in _TOWER_WORDS):
            heads.add(name)
    return frozenset(heads)


@dataclass(frozen=True)
class TensorNames:
    """One model's tensors under canonical names."""

    prefix: str
    """The prefix that was removed from the backbone's names."""
    specs: Mapping[str, TensorSpec]
    wrapper: str = ""
    """The beginning of `prefix` that a training's wrapper added, and that no class would load."""
    heads: frozenset[str] = frozenset()
    """The tensors of the task's head."""
    task: str | None = None
    """The end of the class's name (`ForMaskedLM`); "" for a plain model, None if unknown."""
    tied: bool | None = None
    """True if the language head is the input embedding; None if the config does not say."""
    left_out: tuple[str, ...] = ()
    """The tensors outside the text trunk, if only the trunk is used."""
    modules: tuple[str, ...] = ()
    """The prefixes of further modules' tensors (`2_Dense.`)."""
    folder: Path = Path()
    """The model's folder, for messages."""
    untied_copies: frozenset[str] = frozenset()
    """The copies (`TIED_NAMES`) stored with other numbers than their originals, which no class then ties."""

    @classmethod
    def of(
        cls,
        stored: Mapping[str, TensorSpec],
        *,
        modules: tuple[str, ...],
        config: Mapping[str, Any],
        folder: Path,
    ) -> TensorNames:
        """Return the tensors under current releases' names, without a wrapper's prefix.

        Raises:
            CheckpointError: if two tensors would get the same name.
        """
        trunk = [name for name in stored if not name.startswith(modules)]
        outer_prefix = _find_outer_prefix(trunk)
        prefix = outer_prefix + find_prefix(name.removeprefix(outer_prefix) for name in trunk)
        specs: dict[str, TensorSpec] = {}
        backbone_names: list[str] = []
        other_names: list[str] = []
        for name, spec in stored.items():
            if name.startswith(modules):
                short = name
            elif name.startswith(prefix):
                short = modernise_name(name.removeprefix(prefix))
                backbone_names.append(short)
            else:
                short = name.removeprefix(outer_prefix)
                if prefix.startswith(f"{outer_prefix}model."):
                    # If the trunk is `model.language_model.…`, then `model.visual.…` is the same tensor as
                    # `visual.…` of another class.
                    short = short.removeprefix("model.")
                short = modernise_name(short)
                other_names.append(short)
            if short in specs:
                raise CheckpointError(
                    f"{folder}: tensors '{specs[short].name}' and '{name}' are both '{short}' of the backbone"
                )
            specs[short] = spec
        return cls(
            prefix,
            specs,
            wrapper=outer_prefix.partition("thinker.")[0],
            heads=_find_heads(other_names, backbone_names, has_prefix=prefix != outer_prefix),
            task=_find_task(config),
            tied=config.get("tie_word_embeddings"),
            modules=modules,
            folder=folder,
        )

    def find_embedding(self) -> TensorSpec | None:
        """Return the input embedding, which is also the language head if the two are tied."""
        return next((s for name, s in self.specs.items() if name in _EMBEDDING_NAMES), None)

    def find_original(self, name: str) -> TensorSpec | None:
        """Return the tensor of equal shape that `name`, one of `TIED_NAMES`, copies in a tied model."""
        target = TIED_NAMES[name]
        original = self.specs.get(target) if target else self.find_embedding()
        copy = self.specs.get(name)
        is_equal = original is not None and (copy is None or copy.shape == original.shape)
        return original if is_equal else None

    def find_substitute(self, name: str) -> TensorSpec | None:
        """Return the tensor that a tied model uses in place of a missing copy `name`; None if untied."""
        ties_by_class = self.task != "" and self.tied is not False
        is_tied = name in TIED_NAMES and (ties_by_class or self.tied is True)
        return self.find_original(name) if is_tied else None

    def shares_head(self, other: TensorNames, name: str) -> bool:
        """Return whether both models have, for the same task, the head that the tensor `name` belongs to."""
        head = find_head(name)
        if not any(find_head(other_name) == head for other_name in self.heads):
            return self.find_substitute(name) is not None
        same_task = self.task == other.task or not self.task or not other.task
        return same_task or head == POOLER

    def stores_untied(self, name: str) -> bool:
        """Return whether the model stores other numbers in a copy than in its original, or an untied head."""
        is_untied_head = name == HEAD and name in self.specs and self.tied is False
        return is_untied_head or name in self.untied_copies

    def is_redundant(self, name: str) -> bool:
        """Return whether the model needs no tensor of this name, as its class ties it to its original.

        The language head is redundant if the config ties it or the model has none. Any other copy is
        redundant if the config does not untie it or the model does not store it.
        """
        if name not in TIED_NAMES or name in self.untied_copies:
            return False
        if name == HEAD:
            return self.tied is True or name not in self.specs
        can_be_tied = self.tied is not False or name not in self.specs
        return can_be_tied and self.find_original(name) is not None

    def is_outside_trunk(self, name: str) -> bool:
        """Return whether a tensor belongs to a tower, a projector or a module, by its canonical name."""
        return name.startswith(self.modules) or not self.specs[name].name.startswith(self.prefix)

    def select_text_trunk(self) -> TensorNames:
        """Return the tensors of the text trunk; towers, projectors, heads and modules are `left_out`.

        Raises:
            CheckpointError: if the model has no input embedding or several, so that its trunk is unknown.
        """
        if self.find_embedding() is None:
            raise CheckpointError(
                f"{self.folder}: has no single input embedding, by which its text trunk would be known; "
                "leave out 'part: text'"
            )
        removed_names = [
            name
            for name in self.specs
            if name in self.heads or name == HEAD or self.is_outside_trunk(name)
        ]
        if not removed_names:
            return self
        trunk = {name: spec for name, spec in self.specs.items() if name not in removed_names}
        left_out = (*self.left_out, *removed_names)
        return replace(self, specs=trunk, heads=frozenset(), task="", tied=None, left_out=left_out)

    def name_in_result(self, spec: TensorSpec) -> str:
        """Return the name under which the tensor is stored in a result."""
        return spec.name.removeprefix(self.wrapper)


def is_unused_by_encoders(name: str) -> bool:
    """Return whether no embedding depends on the tensor of this canonical name: a pooler, a decoder."""
    return find_head(name) in _UNUSED_HEADS


def is_buffer(name: str) -> bool:
    """Return whether a tensor follows from the config and is never merged (`position_ids`, `inv_freq`)."""
    return name.rpartition(".")[2] in _BUFFER_NAMES


def is_vocabulary(name: str) -> bool:
    """Return whether a tensor's rows are the vocabulary's tokens."""
    names = {name, TIED_NAMES.get(name)}
    return not names.isdisjoint({"", *_EMBEDDING_NAMES, *_VOCABULARY_BIAS})
