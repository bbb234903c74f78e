"""A SentenceTransformers folder in the words of its older releases, which old and new ones can read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from emberge.model_folder.checkpoint import Checkpoint, ModuleFolder, read_json

__all__ = ["classic_files", "module_config", "pooling_modes"]

_NEW = "sentence_transformers."
_CLASSIC = "sentence_transformers.models."
_SPARSE = "sentence_transformers.sparse_encoder.models."
_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
_OUTPUTS = {"feature-extraction": "last_hidden_state", "fill-mask": "logits"}
_WHERE = {"input": "module_input_name", "output": "module_output_name"}

_Config = dict[str, Any]


def classic_files(checkpoint: Checkpoint) -> dict[str, Any]:
    """The JSON files, by their path in the folder, that read otherwise in classic words.

    Empty where nothing does, and where some module can do what its older release cannot: then only the
    releases that read the model can read a copy of it.
    """
    listed = read_json(checkpoint.folder / "modules.json") if checkpoint.modules else []
    if all(not _is_new(module) for module in checkpoint.modules):
        return {}
    trunk = checkpoint.trunk.relative_to(checkpoint.folder).as_posix()
    place = f"{trunk}/sentence_bert_config.json".removeprefix("./")
    found: dict[str, Any] = {}
    types: dict[str, str] = {}
    for module in checkpoint.modules:
        path = place if module.kind == "Transformer" else _config_path(checkpoint, module)
        own = _read(checkpoint.folder / path)
        said = _say(module, own)
        if said is None:
            return {}
        types[module.path + module.type], config = said
        if config != own:
            found[path] = config
    entries = [
        {**entry, "type": types[str(entry.get("path", "")) + str(entry.get("type", ""))]}
        for entry in listed
    ]
    return found if entries == listed else {"modules.json": entries, **found}


def pooling_modes(config: Mapping[str, Any]) -> list[str]:
    """The ways of pooling that a config of any release names; the mean if it names none."""
    modes = config.get("pooling_mode")
    if modes is not None:
        return [modes] if isinstance(modes, str) else list(modes)
    return [mode for mode, flag in _FLAGS.items() if config.get(flag)] or ["mean"]


def module_config(checkpoint: Checkpoint, module: ModuleFolder) -> Mapping[str, Any]:
    """A module's config in classic words where it has them, else as it stands."""
    own = _read(checkpoint.folder / _config_path(checkpoint, module))
    said = _say(module, own)
    return own if said is None else said[1]


def _config_path(checkpoint: Checkpoint, module: ModuleFolder) -> str:
    names = ("config.json", "cnn_config.json", "lstm_config.json", "wordembedding_config.json")
    for name in names:
        path = f"{module.path}/{name}".removeprefix("/")
        if (checkpoint.folder / path).is_file():
            return path
    return f"{module.path}/config.json".removeprefix("/")


def _is_new(module: ModuleFolder) -> bool:
    return module.type.startswith(_NEW) and not module.type.startswith((_CLASSIC, _SPARSE))


def _say(module: ModuleFolder, config: Mapping[str, Any]) -> tuple[str, _Config] | None:
    """(classic type, classic config) of a module; None where there are none."""
    if not module.type.startswith(_NEW):
        return module.type, dict(config)
    if module.kind in ("Transformer", "MLMTransformer"):
        return _transformer(module, config)
    maker = _MAKERS.get(module.kind)
    said = maker(dict(config)) if maker is not None else None
    sparse = module.kind in ("SpladePooling", "SparseAutoEncoder")
    return None if said is None else ((_SPARSE if sparse else _CLASSIC) + module.kind, said)


def _transformer(module: ModuleFolder, config: Mapping[str, Any]) -> tuple[str, _Config] | None:
    masked = module.kind == "MLMTransformer"
    task = config.get("transformer_task", "fill-mask" if masked else "feature-extraction")
    type_ = f"{_SPARSE}MLMTransformer" if task == "fill-mask" else f"{_CLASSIC}Transformer"
    if not set(config) & {"transformer_task", "modality_config", "module_output_name"}:
        return type_, dict(config)
    text = {"method": "forward", "method_output_name": _OUTPUTS.get(task)}
    rest = {k: v for k, v in config.items() if k not in ("max_seq_length", "do_lower_case")}
    known = {
        "transformer_task": task,
        "modality_config": {"text": text},
        "module_output_name": "token_embeddings",
    }
    if task not in _OUTPUTS or any(v is not None and known.get(k) != v for k, v in rest.items()):
        return None
    kept = {k: v for k, v in config.items() if k not in rest and v is not None}
    return type_, {"do_lower_case": False, **kept}


def _pooling(config: _Config) -> _Config | None:
    if "pooling_mode" not in config:
        return config
    modes = pooling_modes(config)
    if not set(modes) <= set(_FLAGS):
        return None
    dimension = config.get("embedding_dimension", config.get("word_embedding_dimension"))
    flags = {flag: mode in modes for mode, flag in _FLAGS.items()}
    prompt = config.get("include_prompt", True)
    return {"word_embedding_dimension": dimension, **flags, "include_prompt": prompt}


def _dense(config: _Config) -> _Config | None:
    names = {config.pop(key, "sentence_embedding") for key in _WHERE.values()}
    residual = config.pop("use_residual", False)
    return None if residual or names - {"sentence_embedding", None} else config


def _normalize(config: _Config) -> _Config | None:
    # Older releases read no config of it, so what says nothing new may stay.
    at_token = any(
        config.get(key, "sentence_embedding") != "sentence_embedding" for key in _WHERE.values()
    )
    return None if at_token else config


def _renaming(new: str, old: str) -> Callable[[_Config], _Config | None]:
    return lambda config: {old if key == new else key: value for key, value in config.items()}


_DIMENSION = _renaming("embedding_dimension", "word_embedding_dimension")
_MAKERS: Mapping[str, Callable[[_Config], _Config | None]] = {
    "Pooling": _pooling,
    "Dense": _dense,
    "Normalize": _normalize,
    "LayerNorm": lambda config: config,
    "Dropout": lambda config: config,
    "StaticEmbedding": lambda config: config,
    "BoW": lambda config: config,
    "WordEmbeddings": lambda config: config,
    "WordWeights": lambda config: config,
    "WeightedLayerPooling": _DIMENSION,
    "LSTM": _DIMENSION,
    "CNN": _renaming("in_embedding_dimension", "in_word_embedding_dimension"),
    "SpladePooling": _DIMENSION,
    "SparseAutoEncoder": lambda config: config,
}


def _read(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    found = json.loads(path.read_text(encoding="utf-8")) if path.suffix == ".json" else {}
    return found if isinstance(found, dict) else {}
