"""One tensor under all the names that releases, classes and wrappers give it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

HEAD = "lm_head.weight"

# How an input embedding may end, the surest first.
EMBEDDINGS = (
    "embed_tokens.weight",
    "embeddings.word_embeddings.weight",
    "embeddings.tok_embeddings.weight",
    "embeddings.token_embedding.weight",
    "word_embeddings.weight",
    "embed_in.weight",
    "wte.weight",
)
_SHARED = "shared.weight"  # T5 keeps its embedding beside the stacks, which may hold copies of it

# What training and saving wrap around a whole model; no class loads such names, so they never come out.
_OUTER = (
    "base_model.model.",
    "_orig_mod.",
    "_forward_module.",
    "module.",
    "0.auto_model.",
    "0.model.",
)
# Classes of models with more than text wrap all of it once more.
_WRAPPERS = (*_OUTER, "thinker.")

# Copies that a tied model may or may not have on disk, and of what they are copies ("" is the embedding).
TIED: Mapping[str, str] = {
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
_NORMS = re.compile(r"(LayerNorm|layer_norm)\.(gamma|beta)$")
_USUAL = {"gamma": "weight", "beta": "bias"}


def outer_prefix(names: Iterable[str]) -> str:
    """Return the prefix that wrappers put before every single name."""
    names = list(names)
    prefix = ""
    while names:
        found = next((w for w in _WRAPPERS if all(n.startswith(prefix + w) for n in names)), None)
        if found is None:
            break
        prefix += found
    return prefix


def prefix_of(names: Iterable[str]) -> str:
    """Return the prefix of the text backbone's names: that of the one input embedding, else ""."""
    names = list(names)
    for ending in (_SHARED, *EMBEDDINGS):
        found = [n.removesuffix(ending) for n in names if n == ending or n.endswith(f".{ending}")]
        if found:
            return found[0] if len(found) == 1 else ""
    return ""


def usual_name(name: str) -> str:
    """Return the name that today's releases give a tensor of the backbone."""
    if name.endswith(f".{HEAD}"):
        return HEAD
    return _NORMS.sub(lambda found: f"{found[1]}.{_USUAL[found[2]]}", name)
