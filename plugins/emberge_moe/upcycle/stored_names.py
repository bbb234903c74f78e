"""Tensor names on disk, and those of the class that loads them, for architectures where the two differ."""

from __future__ import annotations

from collections.abc import Sequence

_SHARED = (
    ("emb_ln.", "embeddings.LayerNorm."),
    ("encoder.layers.", "layers."),
    (".norm1.", ".post_attention_layernorm."),
    (".norm2.", ".post_mlp_layernorm."),
)
_PAIRS: dict[str, Sequence[tuple[str, str]]] = {
    "jina_embeddings_v3": (*_SHARED, (".mixer.out_proj.", ".self_attn.o_proj.")),
    "nomic_bert": (
        *_SHARED,
        (".attn.out_proj.", ".self_attn.o_proj."),
        (".mlp.fc11.", ".mlp.up_proj."),
        (".mlp.fc12.", ".mlp.gate_proj."),
        (".mlp.fc2.", ".mlp.down_proj."),
    ),
}
# One matrix of query, key and value on disk.
_FUSED = {"jina_embeddings_v3": ".mixer.Wqkv.", "nomic_bert": ".attn.Wqkv."}
_SPLIT = tuple(f".self_attn.{one}_proj." for one in "qkv")


def loaded_name(kind: str, name: str) -> str:
    """Return the name in memory of a tensor on disk, of a model type; without a prefix before it."""
    for stored, loaded in _PAIRS.get(kind, ()):
        name = _replaced(name, stored, loaded)
    return name


def stored_name(kind: str, name: str) -> str:
    """Return the name on disk of a tensor in memory, of a model type; without a prefix before it."""
    for stored, loaded in _PAIRS.get(kind, ()):
        name = _replaced(name, loaded, stored)
    return name


def split_names(kind: str, fused: str) -> list[str]:
    """Return the names in memory of the three parts of a fused matrix on disk; none for another tensor."""
    word = _FUSED.get(kind)
    if word is None or word not in fused:
        return []
    return [loaded_name(kind, fused.replace(word, part)) for part in _SPLIT]


def fused_name(kind: str, name: str) -> tuple[str, bool]:
    """Return the name of the fused matrix that a tensor is a part of, "" for none, and if it is the first."""
    word = _FUSED.get(kind)
    part = next((one for one in _SPLIT if one in name), None)
    if word is None or part is None:
        return "", False
    return name.replace(part, word), part == _SPLIT[0]


def _replaced(name: str, old: str, new: str) -> str:
    if old.startswith("."):
        return name.replace(old, new)
    return new + name[len(old) :] if name.startswith(old) else name
