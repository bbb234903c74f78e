"""Checks of a template: files that a result needs to be opened.

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
from emberge.model_folder.st_layout import ModuleFolder, module_config_path, read_settings
from emberge.model_folder.tokenizer_json import read_tokenizer_json
from emberge.wording import printable

# Modules that may have neither files nor, as packages lose empty folders, a folder.
_EMPTY = frozenset({"Normalize"})
_LIBRARIES = ("sentence_transformers.", "pylate.")
_TRANSFORMERS = ("Transformer", "MLMTransformer", "CLIPModel")
# Files of tokenizers that name special tokens.
_TOKEN_FILES = ("tokenizer_config.json", "special_tokens_map.json")
# Classes of tokenizers that have no words and no padding token but those of their files.
_GENERIC = (None, "PreTrainedTokenizerFast", "TokenizersBackend")
# Files of tokenizers with words.
_VOCABULARIES = (
    *("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "bpe.codes"),
    *("*.model", "*.spm", "*.bpe", "*.tiktoken"),
)
# Files of tokenizers that are JSON objects.
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json")


def template_faults(
    template: Checkpoint, *, config: bool = True, code: bool = True
) -> Iterator[str]:
    """Yield each fault of a model's files that keeps the model, or a result with its files, from opening.

    Each names file and remedy. Without `config` the result gets a config of its own. Without `code` modules
    that are code of their own are passed over, which no result takes over.

    Raises:
        CheckpointError: for files that cannot be read.
    """
    for module in template.modules:
        if not module.type.startswith(_LIBRARIES):
            if code:
                yield (
                    f"{template.folder / 'modules.json'}: module '{printable(module.type, 80)}' is code of "
                    "its own, which no result takes over; take a model of plain modules"
                )
        elif fault := _missing_part(template.folder, module):
            yield f"{template.folder / 'modules.json'}: {fault}; get the whole model"
        else:
            yield from _module_config_faults(template.folder, module)
    if config and _needs_config(template):
        yield from _config_faults(template)
    yield from tokenizer_faults(template.tokenizer_folder)
    yield from _padding_faults(template)
    read_settings(template.folder)


def tokenizer_faults(folder: Path) -> Iterator[str]:
    """Yield what is wrong with a tokenizer's files."""
    config = folder / "tokenizer_config.json"
    if config.is_file() and not any(path.is_file() for path in _vocabularies(folder)):
        named = read_object(config).get("tokenizer_class")
        if named in _GENERIC:  # others may count bytes or characters
            yield f"{folder}: has tokenizer_config.json and no tokenizer.json; get the whole model"
    for path in (folder / name for name in _TOKENIZERS):
        if path.is_file():
            try:
                fault = _tokenizer_fault(path)
            except CheckpointError as error:
                fault = str(error)
            if fault is not None:
                yield fault


def _vocabularies(folder: Path) -> Iterator[Path]:
    return (path for pattern in _VOCABULARIES for path in folder.glob(pattern))


def _tokenizer_fault(path: Path) -> str | None:
    if path.name != "tokenizer.json":
        content = read_object(path)
        return _special_token_fault(path, content) if path.name in _TOKEN_FILES else None
    status = path.stat()
    tokenizer = _load_tokenizer_json(path, status.st_ino, status.st_size, status.st_mtime_ns)
    rows = trunk_config(read_object_if_any(path.with_name("config.json"))).get("vocab_size")
    pad = _padding_token(path.parent)
    full = isinstance(rows, int) and tokenizer.get_vocab_size() >= rows
    if pad is not None and full and tokenizer.token_to_id(pad) is None:
        return (
            f"{path}: does not know the pad_token '{printable(pad, 40)}'; get the tokenizer again"
        )
    return None


@functools.lru_cache(4)
def _load_tokenizer_json(path: Path, *_stamp: int) -> Any:
    """Return the tokenizer of a file; one that did not change is parsed once, by plan, run and build.

    Raises:
        CheckpointError: when the tokenizers library does not take it.
    """
    from tokenizers import Tokenizer

    read_tokenizer_json(path)
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise CheckpointError(
            f"{path}: is no tokenizer: {printable(error, 200)}; get it again"
        ) from error


def _special_token_fault(path: Path, content: Mapping[str, Any]) -> str | None:
    if not isinstance(content.get("tokenizer_class"), str | None):
        return f"{path}: tokenizer_class is not the name of a class; get the file again"
    for name, value in content.items():
        listed = name.endswith("special_tokens") and isinstance(value, list)
        flag = name.startswith("add_") or not name.endswith("_token") or value is None
        tokens = value if listed else [] if flag else [value]
        if not all(map(_is_token, tokens)):
            return (
                f"{path}: {printable(name, 40)} is neither text nor an object with text as content; "
                "get the file again"
            )
    return None


def _is_token(token: Any) -> bool:
    return isinstance(token.get("content") if isinstance(token, dict) else token, str)


def _padding_faults(template: Checkpoint) -> Iterator[str]:
    """Yield a fault for an embedder whose tokenizer cannot make texts of a batch equally long."""
    folder = template.tokenizer_folder
    path = folder / "tokenizer_config.json"
    if not (template.modules and path.is_file() and (folder / "tokenizer.json").is_file()):
        return
    named = read_object(path).get("tokenizer_class") not in _GENERIC
    if not named and _padding_token(folder) is None:
        yield (
            f"{path}: names no pad_token, without which texts of different lengths cannot be embedded "
            "together; get the file again"
        )


def _padding_token(folder: Path) -> str | None:
    """Return the token that the files of a tokenizer name for padding."""
    tokens = (read_object_if_any(folder / name).get("pad_token") for name in _TOKEN_FILES)
    token = next((one for one in tokens if one is not None), None)
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


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


def _module_config_faults(folder: Path, module: ModuleFolder) -> Iterator[str]:
    if not module.type.startswith("sentence_transformers."):
        return
    path = folder / module_config_path(folder, module)
    config = read_object_if_any(path)
    faults = [printable(fault, 200) for fault in module_faults(module.kind, config)]
    if module.kind == "Pooling" and not faults:
        odd = [mode for mode in pooling_modes(config) if mode not in POOLING]
        faults = [f"pooling_mode '{printable(m, 40)}' is none of {', '.join(POOLING)}" for m in odd]
    yield from (f"{path}: {fault}; get the file again" for fault in faults)
