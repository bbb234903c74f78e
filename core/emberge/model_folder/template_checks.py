"""Checks of a template: files that a result needs to be opened, and sizes that agree with the weights.

A result has its config, modules and tokenizer from the template. What is missing or wrong there would be seen
by whoever opens the result, so it is found from configs and headers before anything is merged.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from emberge.errors import CheckpointError
from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.classic_names import POOLING, pooling_modes
from emberge.model_folder.compare_models import trunk_config
from emberge.model_folder.config_fields import field_faults, module_faults
from emberge.model_folder.json_files import read_object, read_object_if_any
from emberge.model_folder.model_files import tokenizer_folder
from emberge.model_folder.names.tensor_names import Names, layer_number
from emberge.model_folder.st_layout import ModuleFolder
from emberge.model_folder.tokenizer_json import read_tokenizer_json
from emberge.wording import printable

__all__ = ["code_faults", "size_faults", "template_faults", "tokenizer_faults"]

# Modules that may have neither files nor, as packages lose empty folders, a folder.
_EMPTY = frozenset({"Normalize"})
_LIBRARIES = ("sentence_transformers.", "pylate.")
_TRANSFORMERS = ("Transformer", "MLMTransformer", "CLIPModel")
# Keys that configs have for the width of the rows of the input embedding.
_WIDTHS = (
    *("hidden_size", "embedding_size", "d_model", "n_embd", "dim", "emb_dim", "d_embed"),
    *("word_embed_proj_dim", "hidden_dim", "embedding_dim"),
)
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
# Classes whose layers share weights, so that there are fewer tensors than layers.
_SHARED_LAYERS = frozenset({"albert"})
# Files of tokenizers that name special tokens.
_TOKEN_FILES = ("tokenizer_config.json", "special_tokens_map.json")
# Files of tokenizers that are JSON objects.
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json")


def code_faults(template: Checkpoint) -> Iterator[str]:
    """Yield each module of a template that is code of its own, which no result takes over.

    Raises:
        CheckpointError: for a modules.json that cannot be read.
    """
    for module in template.modules:
        if not module.type.startswith(_LIBRARIES):
            yield (
                f"{template.folder / 'modules.json'}: module '{printable(module.type, 80)}' is code of its "
                "own, which no result takes over; take a model of plain modules"
            )


def template_faults(template: Checkpoint, *, config: bool = True) -> Iterator[str]:
    """Yield each fault of a model's files that keeps the model, or a result with its files, from opening.

    Each names file and remedy. Without `config` the result gets a config of its own.

    Raises:
        CheckpointError: for files that cannot be read.
    """
    for module in template.modules:
        if not module.type.startswith(_LIBRARIES):
            continue
        if fault := _missing_part(template.folder, module):
            yield f"{template.folder / 'modules.json'}: {fault}; get the whole model"
        elif module.path:
            yield from _module_config_faults(template.folder / module.path / "config.json", module)
    if config and _needs_config(template):
        yield from _config_faults(template)
    yield from tokenizer_faults(tokenizer_folder(template))


def tokenizer_faults(folder: Path) -> Iterator[str]:
    """Yield what is wrong with a tokenizer's files."""
    for path in (folder / name for name in _TOKENIZERS):
        if path.is_file():
            status = path.stat()
            fault = _tokenizer_fault(path, status.st_ino, status.st_size, status.st_mtime_ns)
            if fault is not None:
                yield fault


@functools.lru_cache(64)
def _tokenizer_fault(path: Path, *_stamp: int) -> str | None:
    """Return what is wrong with a file; one that did not change is parsed once, by plan, run and build."""
    try:
        if path.name == "tokenizer.json":
            read_tokenizer_json(path)
            return None
        content = read_object(path)
    except CheckpointError as error:
        return str(error)
    for name, token in content.items() if path.name in _TOKEN_FILES else ():
        listed = name.endswith("special_tokens") and isinstance(token, list)
        tokens = (
            token if listed else [token] if name.endswith("_token") and token is not None else []
        )
        if not all(map(_is_token, tokens)):
            return (
                f"{path}: {printable(name, 40)} is neither text nor an object with text as content; "
                "get the file again"
            )
    return None


def _is_token(token: Any) -> bool:
    """Return whether it is a special token as tokenizers' files have them, or a flag like add_bos_token."""
    content = token.get("content") if isinstance(token, dict) else token
    return isinstance(content, str | bool)


def size_faults(template: Checkpoint, names: Names, *, vocabulary: bool = True) -> Iterator[str]:
    """Yield sizes in a template's config that its tensors do not have.

    Without `vocabulary` the result gets a vocabulary of its own.
    """
    config = trunk_config(template.config)
    path = template.folder / template.in_trunk("config.json")
    words = names.embedding()
    if words is not None and len(words.shape) == 2:
        rows, width = words.shape
        size = config.get("vocab_size")
        if vocabulary and isinstance(size, int) and rows not in _padded(size, config):
            yield (
                f"{path}: vocab_size is {size:,}, and '{printable(words.name, 80)}' has {rows:,} rows; "
                "get the config of these weights"
            )
        stated = {key: config[key] for key in _WIDTHS if isinstance(config.get(key), int)}
        if stated and width not in stated.values():
            shown = ", ".join(f"{key} is {value:,}" for key, value in list(stated.items())[:2])
            yield (
                f"{path}: {shown}, and the rows of '{printable(words.name, 80)}' have {width:,} numbers; "
                "get the config of these weights"
            )
    yield from _layer_faults(path, config, names)


def _padded(size: int, config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the rows that an embedding of `size` words may have, as some classes round them up."""
    multiple = config.get("pad_vocab_size_multiple")
    if not isinstance(multiple, int) or multiple < 1:
        return size, size
    return size, -(-size // multiple) * multiple


def _layer_faults(path: Path, config: Mapping[str, Any], names: Names) -> Iterator[str]:
    stated = next(((key, config[key]) for key in _LAYERS if isinstance(config.get(key), int)), None)
    if stated is None or config.get("model_type") in _SHARED_LAYERS:
        return
    numbers = {layer_number(name) for name in names.specs} - {None}
    # A class may store more, as for predicting several tokens.
    if numbers and len(numbers) < stated[1]:
        yield (
            f"{path}: {stated[0]} is {stated[1]:,}, and the weights have {len(numbers):,} layers; "
            "get the whole model, or the config of these weights"
        )


def _needs_config(template: Checkpoint) -> bool:
    """Return whether a class of transformers opens the template's trunk."""
    if not template.modules:
        return True
    return template.modules[0].kind in _TRANSFORMERS


def _config_faults(template: Checkpoint) -> Iterator[str]:
    path = template.folder / template.in_trunk("config.json")
    if not path.is_file():
        yield (
            f"{template.folder}: has no {template.in_trunk('config.json')}, without which nothing opens the "
            "model; get the whole model"
        )
        return
    kind = template.config.get("model_type")
    if not isinstance(kind, str) or not kind:
        yield f"{path}: has no model_type, so nothing opens the model; get the file again"
    for fault in field_faults(template.config):
        yield f"{path}: {printable(fault, 200)}; get the file again"


def _missing_part(folder: Path, module: ModuleFolder) -> str | None:
    """Return what is missing of a module's folder, None if nothing is."""
    if not module.path or module.kind in _EMPTY:
        return None
    place = folder / module.path
    if not place.is_dir():
        return f"the folder '{module.path}' of module {module.kind} is missing"
    if module.kind in ("Pooling", "Dense") and not read_object_if_any(place / "config.json"):
        return f"module {module.kind} has no {module.path}/config.json"
    return None


def _module_config_faults(path: Path, module: ModuleFolder) -> Iterator[str]:
    if not module.type.startswith("sentence_transformers.") or module.kind in _TRANSFORMERS:
        return
    config = read_object_if_any(path)
    faults = [printable(fault, 200) for fault in module_faults(module.kind, config)]
    if module.kind == "Pooling" and not faults:
        odd = [mode for mode in pooling_modes(config) if mode not in POOLING]
        faults = [
            f"pooling_mode '{printable(mode, 40)}' is none of {', '.join(POOLING)}" for mode in odd
        ]
    yield from (f"{path}: {fault}; get the file again" for fault in faults)
