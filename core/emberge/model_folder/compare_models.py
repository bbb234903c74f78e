"""Comparison of two models by the files in their folders other than weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.classic_names import pooling_modes
from emberge.model_folder.folder_files import TOKENIZER_FILES, read_object_if_any
from emberge.model_folder.st_layout import (
    ModuleFolder,
    module_config,
    read_settings,
    read_trunk_settings,
)

_MUST_AGREE = (
    "model_type",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "hidden_activation",
    "position_embedding_type",
)
# Configs inside those of models with more than text, the outer ones first.
_NESTED_CONFIGS = ("thinker_config", "text_config", "language_config", "llm_config")
_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", *_MUST_AGREE[1:])
# Keys that only place images among positions; text has the same position on every axis.
_IMAGE_ROPE_KEYS = frozenset({"mrope_section", "mrope_interleaved", "type"})
_SHOULD_AGREE = (
    *("rope_theta", "rope_parameters", "rope_scaling", "sliding_window", "is_causal"),
    # Routing: experts of a token, and how their gates are scaled.
    *("num_experts_per_tok", "top_k", "norm_topk_prob", "normalize_gates"),
)
_MODULE_SIZES = (
    "in_features",
    "out_features",
    "dimension",
    "input_dim",
    "hidden_dim",
    "out_channels",
)
_COLBERT = "artifact.metadata"
_COLBERT_KEYS = (
    *("query_maxlen", "doc_maxlen", "query_token_id", "doc_token_id", "mask_punctuation"),
    *("attend_to_mask_tokens", "similarity", "dim"),
)
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class ModelPair:
    """A pair of models, compared by the files in their folders other than weights.

    A plain transformers folder may have fewer keys than another folder of the same model: only keys that both
    have are compared. Each difference is a text: `key is a in one and b in the other`.
    """

    first: Checkpoint
    second: Checkpoint

    def incomparable(self, *, modules: bool = True) -> Iterator[str]:
        """Yield differences that make the tensors of the two models incomparable.

        A base need not have the `modules` of its descendants.
        """
        for key in _MUST_AGREE:
            differences = list(
                _compare_key(key, self.first.config, self.second.config, "config.json's ")
            )
            yield from differences
            if differences and key == "model_type":
                return  # all else follows from it
        if not (modules and self.first.modules and self.second.modules):
            return
        kinds = [" + ".join(m.kind for m in c.chain) for c in (self.first, self.second)]
        if kinds[0] != kinds[1]:
            yield f"the modules are {kinds[0]} in one and {kinds[1]} in the other (modules.json)"
            return
        for module, first_config, second_config in self._pair_modules():
            for key in _MODULE_SIZES:
                file = f" ({module.path}/config.json)"
                yield from _compare_key(key, first_config, second_config, f"{module.kind}'s ", file)

    def incomparable_trunks(self, *, positions: bool = True) -> Iterator[str]:
        """Yield differences that make the two text trunks incomparable: family, sizes, RoPE bases.

        A RoPE base that only one config has is a difference too, as the classes' defaults differ. Without
        `positions`, RoPE bases are not compared.
        """
        first_config, second_config = (
            trunk_config(self.first.config),
            trunk_config(self.second.config),
        )
        families = [
            str(config.get("model_type", "")).partition("_")[0]
            for config in (first_config, second_config)
        ]
        if families[0] != families[1]:
            yield f"the text trunk is {families[0]} in one and {families[1]} in the other"
            return
        for key in _SIZES:
            yield from _compare_key(key, first_config, second_config, "the text config's ")
        rope_options_pair = rope_options(first_config), rope_options(second_config)
        for key in (
            sorted(rope_options_pair[0].keys() | rope_options_pair[1].keys()) if positions else ()
        ):
            a, b = (
                _shorten_value(rope[key]) if key in rope else "missing"
                for rope in rope_options_pair
            )
            if a != b:
                yield f"the text config's {key} is {a} in one and {b} in the other"

    def choices(self) -> Iterator[str]:
        """Yield differences that a user has to decide: pooling, prompts, lengths."""
        kinds = [[module.kind for module in c.chain] for c in (self.first, self.second)]
        if self.first.modules and self.second.modules and kinds[0] == kinds[1]:
            for module, first_config, second_config in self._pair_modules():
                for key in sorted(
                    (first_config.keys() & second_config.keys()) - set(_MODULE_SIZES)
                ):
                    file = f" ({module.path}/config.json)"
                    yield from _compare_key(
                        key, first_config, second_config, f"{module.kind}'s ", file
                    )
        first_choices, second_choices = _read_choices(self.first), _read_choices(self.second)
        for key in sorted(first_choices.keys() & second_choices.keys()):
            yield from _compare_key(key, first_choices, second_choices)

    def smaller_differences(self) -> Iterator[str]:
        """Yield the remaining differences, for which a merged result gets the template's value."""
        for key in _SHOULD_AGREE:
            yield from _compare_key(key, self.first.config, self.second.config, "config.json's ")

    @property
    def same_tokenizer(self) -> bool:
        """True if the tokenizers' files are equal byte for byte."""
        folders = self.first.tokenizer_folder, self.second.tokenizer_folder
        for a, b in ((folders[0] / name, folders[1] / name) for name in TOKENIZER_FILES):
            if a.is_file() != b.is_file() or (a.is_file() and a.read_bytes() != b.read_bytes()):
                return False
        return True

    def _pair_modules(
        self,
    ) -> Iterator[tuple[ModuleFolder, Mapping[str, Any], Mapping[str, Any]]]:
        """Yield the modules of two chains of equal kinds in pairs, with both configs in classic names."""
        for a, b in zip(self.first.chain, self.second.chain, strict=True):
            if a.path and not (a.kind.endswith("Transformer") or a.kind in ("Router", "Asym")):
                yield a, _read_options(self.first, a), _read_options(self.second, b)


def trunk_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of a model's text trunk: the innermost one for text, or the config itself."""
    inner = next((key for key in _NESTED_CONFIGS if isinstance(config.get(key), dict)), None)
    return config if inner is None else trunk_config(config[inner])


def with_trunk_config(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with changed keys of its text trunk, which may be nested (see `trunk_config`)."""
    inner = next((key for key in _NESTED_CONFIGS if isinstance(config.get(key), dict)), None)
    if inner is None:
        return {**config, **changes}
    return {**config, inner: with_trunk_config(config[inner], changes)}


def rope_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the RoPE options of a model's text trunk, in one form for all releases.

    Values that a config does not state, and values that only affect positions in images, are omitted.
    """
    config = trunk_config(config)
    stated_options = config.get("rope_parameters") or config.get("rope_scaling") or {}
    options = {key: config[key] for key in ("rope_theta", "partial_rotary_factor") if key in config}
    kind = stated_options.get("rope_type", stated_options.get("type", "default"))
    options["rope_type"] = "default" if kind == "mrope" else kind
    return options | {
        k: v for k, v in stated_options.items() if k not in {*_IMAGE_ROPE_KEYS, "rope_type"}
    }


def _compare_key(
    key: str, first: Mapping[str, Any], second: Mapping[str, Any], of: str = "", file: str = ""
) -> Iterator[str]:
    a, b = first.get(key), second.get(key)
    if a is not None and b is not None and a != b:
        yield f"{of}{key} is {_shorten_value(a)} in one and {_shorten_value(b)} in the other{file}"


def _shorten_value(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _read_options(checkpoint: Checkpoint, module: ModuleFolder) -> Mapping[str, Any]:
    config = module_config(checkpoint.folder, module)
    if module.kind == "Pooling":
        prompt = config.get("include_prompt", True)
        return {"mode": " + ".join(pooling_modes(config)), "prompt": prompt}
    return config


def _read_choices(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return a folder's prompts, similarity, lengths and labels in a form that is equal for all releases."""
    settings: dict[str, Any] = {}
    stored = read_settings(checkpoint.folder)
    if stored:
        settings |= {k: v for k, v in stored.items() if k != "__version__" and v is not None}
        prompts = settings.get("prompts") or {}
        settings["prompts"] = {name: text for name, text in prompts.items() if text}
    if checkpoint.modules:
        settings |= _read_lengths(checkpoint)
    metadata = read_object_if_any(checkpoint.folder / _COLBERT)
    settings |= {key: metadata[key] for key in _COLBERT_KEYS if key in metadata}
    return settings | _find_labels(checkpoint.config, settings)


def _read_lengths(checkpoint: Checkpoint) -> dict[str, Any]:
    stored = read_trunk_settings(checkpoint.trunk)
    tokenizer = read_object_if_any(checkpoint.trunk / "tokenizer_config.json")
    settings = {"do_lower_case": False, **stored}
    length = stored.get("max_seq_length") or tokenizer.get("model_max_length")
    # A tokenizer without a limit has a number beyond all bounds.
    settings["max_seq_length"] = length if length and length < 1e9 else None
    names = (
        "do_lower_case",
        "max_seq_length",
        "query_length",
        "document_length",
        "query_expansion",
    )
    return {key: settings[key] for key in names if settings.get(key) is not None}


def _find_labels(config: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return labels and activation of a classifier's outputs, from the files and keys of any release."""
    block = config.get("sentence_transformers")
    block = block if isinstance(block, dict) else {}
    activation = (
        settings.get("activation_fn")
        or block.get("activation_fn")
        or config.get("sbert_ce_default_activation_function")
    )
    label_facts: dict[str, Any] = {}
    if activation:
        label_facts["activation_fn"] = str(activation).rpartition(".")[2]
    labels = config.get("id2label")
    if isinstance(labels, dict) and not all(str(v).startswith("LABEL_") for v in labels.values()):
        label_facts["id2label"] = {str(k): v for k, v in labels.items()}
    return label_facts
