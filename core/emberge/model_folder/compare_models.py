"""Comparison of two models by the files in their folders other than weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.folder_files import TOKENIZER_FILES
from emberge.model_folder.model_config import find_trunk_config, read_rope_options
from emberge.model_folder.st_layout import read_module_config

_MUST_AGREE = (
    "model_type",
    # Names that classes have for the number of heads, and for the activation.
    *("num_attention_heads", "num_heads", "n_heads", "n_head", "num_key_value_heads", "head_dim"),
    *("hidden_act", "hidden_activation", "activation", "activation_function", "feed_forward_proj"),
    "position_embedding_type",
)
_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", *_MUST_AGREE[1:])
MODULE_SIZES = (
    *("in_features", "out_features", "dimension", "input_dim", "hidden_dim", "out_channels"),
)
"""Keys of modules' configs on which shapes of tensors depend."""
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class ModelPair:
    """A pair of models, compared by the files in their folders other than weights.

    Only keys that both configs have are compared, as a plain transformers folder may have fewer of them. Each
    difference is a text: `key is a in one and b in the other`.
    """

    first: Checkpoint
    second: Checkpoint

    def find_differences(self, *, modules: bool = True) -> Iterator[str]:
        """Yield differences that make the tensors of the two models incomparable.

        A base need not have the `modules` of its descendants.
        """
        for key in _MUST_AGREE:
            configs = self.first.config, self.second.config
            differences = list(_compare_key(key, *configs, "config.json's "))
            yield from differences
            if differences and key == "model_type":
                return  # all else follows from it
        if not (modules and self.first.modules and self.second.modules):
            return
        kinds = [" + ".join(m.kind for m in c.chain) for c in (self.first, self.second)]
        if kinds[0] != kinds[1]:
            yield f"the modules are {kinds[0]} in one and {kinds[1]} in the other (modules.json)"
            return
        for first, second in zip(self.first.chain, self.second.chain, strict=True):
            configs = (
                read_module_config(self.first.folder, first),
                read_module_config(self.second.folder, second),
            )
            file = f" ({first.path}/config.json)"
            for key in MODULE_SIZES if first.path else ():
                yield from _compare_key(key, *configs, f"{first.kind}'s ", file)

    def find_trunk_differences(self, *, positions: bool = True) -> Iterator[str]:
        """Yield differences that make the two text trunks incomparable: family, sizes, RoPE bases.

        A RoPE base that only one config has is a difference too, as the classes' defaults differ. Without
        `positions`, RoPE bases are not compared.
        """
        configs = find_trunk_config(self.first.config), find_trunk_config(self.second.config)
        families = [str(config.get("model_type", "")).partition("_")[0] for config in configs]
        if families[0] != families[1]:
            yield f"the text trunk is {families[0]} in one and {families[1]} in the other"
            return
        for key in _SIZES:
            yield from _compare_key(key, *configs, "the text config's ")
        ropes = [read_rope_options(config) for config in configs] if positions else []
        for key in sorted({key for rope in ropes for key in rope}):
            a, b = (shorten_value(rope[key]) if key in rope else "missing" for rope in ropes)
            if a != b:
                yield f"the text config's {key} is {a} in one and {b} in the other"

    @property
    def same_tokenizer(self) -> bool:
        """True if the tokenizers' files are equal byte for byte."""
        folders = self.first.tokenizer_folder, self.second.tokenizer_folder
        for a, b in ((folders[0] / name, folders[1] / name) for name in TOKENIZER_FILES):
            if a.is_file() != b.is_file() or (a.is_file() and a.read_bytes() != b.read_bytes()):
                return False
        return True


def _compare_key(
    key: str, first: Mapping[str, Any], second: Mapping[str, Any], of: str = "", file: str = ""
) -> Iterator[str]:
    a, b = first.get(key), second.get(key)
    if a is not None and b is not None and a != b:
        yield describe_difference(f"{of}{key}", a, b, file)


def describe_difference(label: str, first: Any, second: Any, file: str = "") -> str:
    """Return a text on two values: `label is a in one and b in the other`, and the file that has them."""
    return (
        f"{label} is {shorten_value(first)} in one and {shorten_value(second)} in the other{file}"
    )


def shorten_value(value: Any) -> str:
    """Return a value as Python writes it, cut to a length that a message can have."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
