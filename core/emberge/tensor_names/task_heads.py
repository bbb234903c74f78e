"""Heads: the tensors that a class for one task adds to a backbone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

# Where the backbone's names have no prefix, heads are known by their names alone.
_KNOWN = frozenset(
    {
        *("cls", "classifier", "pre_classifier", "score", "qa_outputs", "linear", "lm_head"),
        *("predictions", "vocab_transform", "vocab_layer_norm", "vocab_projector"),
        *("generator_predictions", "generator_lm_head", "discriminator_predictions"),
    }
)
POOLER = "pooler"
# Parts of models with more than text: never missing in a whole one.
_TOWERS = (
    "tower",
    "vision",
    "visual",
    "audio",
    "projector",
    "merger",
    "talker",
    "image",
    "code2wav",
)
_NUMBERED = re.compile(r"\b(layers?|h|blocks?)\.\d+\.")
_TASK = re.compile(r"(For[A-Z]\w*|LMHeadModel|WithProjection)$")
_CLASS = re.compile(r"[A-Z]")
_SAME = {"ForPreTraining": "ForMaskedLM"}  # which has one head more


def task_of(config: Mapping[str, Any]) -> str | None:
    """Return the task of a saved model's class: `ForMaskedLM`, "" for a plain model, None if unknown."""
    listed = config.get("architectures")
    if not isinstance(listed, list) or not listed or not _CLASS.match(str(listed[0])):
        return None
    found = _TASK.search(str(listed[0]))
    return _SAME.get(found[1], found[1]) if found else ""


def head_of(name: str) -> str:
    """Return the head that a tensor of a head belongs to, with two words for BERT's (`cls.predictions`)."""
    first, _, rest = name.partition(".")
    return f"{first}.{rest.partition('.')[0]}" if first == "cls" else first


def heads_in(outside: Iterable[str], inside: Iterable[str], *, wrapped: bool) -> frozenset[str]:
    """Return the canonical names of the tensors of heads.

    `outside` are names without the backbone's prefix, `inside` those with it; without a prefix (`wrapped`
    False) all are inside.
    """
    found = {name for name in inside if head_of(name) == POOLER}
    if not wrapped:
        found |= {name for name in inside if head_of(name).partition(".")[0] in _KNOWN}
        return frozenset(found)
    outside = list(outside)
    layered = {head_of(name) for name in outside if _NUMBERED.search(name)}
    for name in outside:
        head = head_of(name)
        if head not in layered and not any(word in head for word in _TOWERS):
            found.add(name)
    return frozenset(found)
