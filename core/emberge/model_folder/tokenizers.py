"""Checking and reading of the files of tokenizers in model folders.

A tokenizer without a vocabulary is refused: transformers itself makes one of only special tokens of it, for
which every word is unknown. Embeddings of texts would then be meaningless, and no later step would notice.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from emberge.errors import CheckpointError
from emberge.files import open_regular
from emberge.model_folder.folder_files import read_object, read_object_if_any, read_text

# Files of tokenizers that are JSON objects.
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json")
# Vocabularies in formats that are never written; libraries read tokenizer.json in their place.
_OTHER_FORMATS = ("*.model", "*.spm", "*.tiktoken", "*.bpe", "*.codes", "*.vocab", "unigram.json")
# Files of tokenizers with words.
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", *_OTHER_FORMATS)
# Classes of tokenizers that have no words but those of their files.
_GENERIC_CLASSES = (None, "PreTrainedTokenizerFast", "TokenizersBackend")


def read_tokenizer_json(path: Path) -> dict[str, Any]:
    """Return the content of a tokenizer.json: its `model` with a vocabulary, and its `added_tokens`.

    The model's `type` is the algorithm, also if the file does not name it.

    Raises:
        CheckpointError: if it is not valid JSON, or not that of a tokenizer.
    """
    content = read_object(path)
    model, added = content.get("model"), content.get("added_tokens")
    if not isinstance(model, dict) or not isinstance(added, list):
        raise CheckpointError(
            f"{path}: is no tokenizer, as it has no model or no added_tokens; get it again"
        )
    return {**content, "model": {**model, "type": _find_algorithm(model)}}


def _find_algorithm(model: Mapping[str, Any]) -> str:
    """Return the algorithm of a tokenizer.json's `model`: its type, or by its parts in files without one."""
    if model.get("type"):
        return str(model["type"])
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "BPE" if "merges" in model else "WordPiece"


def read_chat_template(folder: Path) -> Any:
    """Return a tokenizer's template of conversations, or its list of them; None if no file has one."""
    if (path := folder / "chat_template.jinja").is_file():
        return read_text(path)
    stored = (folder / name for name in ("chat_template.json", "tokenizer_config.json"))
    templates = (read_object_if_any(path).get("chat_template") for path in stored)
    return next((template for template in templates if template is not None), None)


def split_merge(merge: Any) -> tuple[str, str]:
    """Return the two tokens of a merge of BPE, which tokenizer.json has as text or as a pair."""
    first, second = merge.split(" ", 1) if isinstance(merge, str) else merge
    return first, second


def list_other_formats(folder: Path) -> list[Path]:
    """Return the files of a folder with a whole vocabulary in a format that emberge does not write."""
    files = (path for pattern in _OTHER_FORMATS for path in sorted(folder.glob(pattern)))
    return [path for path in files if path.is_file()]


def describe_tokenizer_problems(folder: Path) -> Iterator[str]:
    """Yield the problems of a tokenizer's files, each with file and remedy."""
    config = folder / "tokenizer_config.json"
    if config.is_file() and not any(path.is_file() for path in _list_vocabularies(folder)):
        named = read_object(config).get("tokenizer_class")
        if named in _GENERIC_CLASSES:  # others may count bytes or characters
            yield f"{folder}: has tokenizer_config.json and no tokenizer.json; get the whole model"
    paths = [folder / name for name in _TOKENIZERS]
    if not paths[0].is_file():
        paths += (path for path in _list_vocabularies(folder) if path.suffix != ".json")
    for path in paths:
        if path.is_file():
            try:
                _read_tokenizer_file(path)
            except CheckpointError as error:
                yield str(error)


def _list_vocabularies(folder: Path) -> Iterator[Path]:
    return (path for pattern in _VOCABULARIES for path in folder.glob(pattern))


def _read_tokenizer_file(path: Path) -> None:
    """Read a file of a tokenizer.

    Raises:
        CheckpointError: if it is a pointer or a pipe, no JSON object, or no tokenizer.
    """
    if path.suffix != ".json":
        open_regular(path).close()
    elif path.name != "tokenizer.json":
        read_object(path)
    else:
        status = path.stat()
        _load_tokenizer_json(path, status.st_ino, status.st_size, status.st_mtime_ns)


@functools.lru_cache(4)
def _load_tokenizer_json(path: Path, *_stamp: int) -> Any:
    """Return the parsed tokenizer.json, cached as long as the file does not change.

    Raises:
        CheckpointError: if the tokenizers library refuses it.
    """
    from tokenizers import Tokenizer

    read_tokenizer_json(path)
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise CheckpointError(f"{path}: is no tokenizer: {error}; get it again") from error
