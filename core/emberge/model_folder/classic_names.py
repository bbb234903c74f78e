"""Classic and new names of SentenceTransformers modules and their options.

Old and new releases load classic names; releases before 6 do not load the new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

CLASSIC = "sentence_transformers.models."
# Our words for pooling, and the words and the flags of config files.
POOLING = {
    "mean": ("mean", "pooling_mode_mean_tokens"),
    "cls": ("cls", "pooling_mode_cls_token"),
    "last": ("lasttoken", "pooling_mode_lasttoken"),
    "weighted_mean": ("weightedmean", "pooling_mode_weightedmean_tokens"),
    "max": ("max", "pooling_mode_max_tokens"),
    "mean_sqrt_len": ("mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens"),
}
_NEW_PREFIX = "sentence_transformers."
_SPARSE_PREFIX = "sentence_transformers.sparse_encoder.models."
_OUTPUT_BY_TASK = {"feature-extraction": "last_hidden_state", "fill-mask": "logits"}
# An option that a class does not know makes a release before 6 fail.
_TRANSFORMER_OPTIONS = frozenset(
    {"max_seq_length", "do_lower_case", "model_args", "tokenizer_args", "config_args"}
)
_POOLING_OPTIONS = frozenset(
    {"pooling_mode", "embedding_dimension", "word_embedding_dimension", "include_prompt"}
)
# The packages of modules of embedders; `LayerNorm` and the like follow no rule and keep their names.
_PACKAGE_BY_KIND = {
    **{"Transformer": "base", "Normalize": "base", "Dense": "base"},
    "Pooling": "sentence_transformer",
}
_IN_AND_OUT = ("module_input_name", "module_output_name")

_Config = dict[str, Any]


def needs_new_release(type_: str) -> bool:
    """Return whether only SentenceTransformers from release 6 can load a module's type."""
    return type_.startswith(_NEW_PREFIX) and not type_.startswith((CLASSIC, _SPARSE_PREFIX))


def find_new_type(type_: str) -> str:
    """Return the name of a module's type in release 6; a type without such a name is returned unchanged."""
    kind = type_.rpartition(".")[2]
    package = _PACKAGE_BY_KIND.get(kind)
    return f"{_NEW_PREFIX}{package}.modules.{kind.lower()}.{kind}" if package is not None else type_


def pooling_modes(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return emberge's names for the pooling modes in a config of any release; `mean` by default."""
    mode = config.get("pooling_mode")
    name_by_word = {name: word for word, (name, _) in POOLING.items()}
    if mode is not None:
        return tuple(name_by_word.get(m, m) for m in ([mode] if isinstance(mode, str) else mode))
    return tuple(word for word, (_, flag) in POOLING.items() if config.get(flag)) or ("mean",)


def classic_module(type_: str, config: Mapping[str, Any]) -> tuple[str, _Config] | None:
    """Return a module's type and config in classic names; None if old releases have no such module.

    A module whose code is not in the library is returned unchanged.
    """
    if not type_.startswith(_NEW_PREFIX):
        return type_, dict(config)
    kind = type_.rpartition(".")[2]
    if kind in ("Transformer", "MLMTransformer"):
        return _convert_transformer(kind, config)
    convert = _CONVERSIONS.get(kind)
    classic = convert(dict(config)) if convert is not None else None
    sparse = kind in ("SpladePooling", "SparseAutoEncoder")
    return None if classic is None else ((_SPARSE_PREFIX if sparse else CLASSIC) + kind, classic)


def _convert_transformer(kind: str, config: Mapping[str, Any]) -> tuple[str, _Config] | None:
    masked = kind == "MLMTransformer"
    task = config.get("transformer_task", "fill-mask" if masked else "feature-extraction")
    type_ = f"{_SPARSE_PREFIX}MLMTransformer" if task == "fill-mask" else f"{CLASSIC}Transformer"
    if not set(config) & {"transformer_task", "modality_config", "module_output_name"}:
        return type_, dict(config)
    # What releases before had no name for: it must be as they behaved.
    default_options = {
        "transformer_task": task,
        "modality_config": {
            "text": {"method": "forward", "method_output_name": _OUTPUT_BY_TASK.get(task)}
        },
        "module_output_name": "token_embeddings",
    }
    options = {k: v for k, v in config.items() if v is not None}
    new_options = {k: v for k, v in options.items() if k not in _TRANSFORMER_OPTIONS}
    if task not in _OUTPUT_BY_TASK or any(
        default_options.get(k) != v for k, v in new_options.items()
    ):
        return None
    return type_, {
        "do_lower_case": False,
        **{k: v for k, v in options.items() if k not in new_options},
    }


def _convert_pooling(config: _Config) -> _Config | None:
    if "pooling_mode" not in config:
        return config
    modes = pooling_modes(config)
    if not set(modes) <= set(POOLING) or set(config) - _POOLING_OPTIONS:
        return None
    dimension = config.get("embedding_dimension", config.get("word_embedding_dimension"))
    flags = {flag: word in modes for word, (_, flag) in POOLING.items()}
    prompt = config.get("include_prompt", True)
    return {"word_embedding_dimension": dimension, **flags, "include_prompt": prompt}


def _convert_dense(config: _Config) -> _Config | None:
    names = {config.pop(key, "sentence_embedding") for key in _IN_AND_OUT}
    residual = config.pop("use_residual", False)
    return None if residual or names - {"sentence_embedding", None} else config


def _convert_normalize(config: _Config) -> _Config | None:
    # Older releases read no config of it, so one that has nothing new may stay.
    at_token = any(
        config.get(key, "sentence_embedding") != "sentence_embedding" for key in _IN_AND_OUT
    )
    return None if at_token else config


def _keep_config(config: _Config) -> _Config | None:
    return config


def _rename_option(new: str, old: str) -> Callable[[_Config], _Config | None]:
    return lambda config: {old if key == new else key: value for key, value in config.items()}


_DIMENSION = _rename_option("embedding_dimension", "word_embedding_dimension")
_CONVERSIONS: Mapping[str, Callable[[_Config], _Config | None]] = {
    "Pooling": _convert_pooling,
    "Dense": _convert_dense,
    "Normalize": _convert_normalize,
    **dict.fromkeys(
        ("LayerNorm", "Dropout", "StaticEmbedding", "BoW", "WordEmbeddings"), _keep_config
    ),
    **dict.fromkeys(("WordWeights", "SparseAutoEncoder"), _keep_config),
    **dict.fromkeys(("WeightedLayerPooling", "LSTM", "SpladePooling"), _DIMENSION),
    "CNN": _rename_option("in_embedding_dimension", "in_word_embedding_dimension"),
}
