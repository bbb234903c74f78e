"""Checking, reading and loading of the tokenizers of model folders.

A folder's code is never used to load a tokenizer, and a tokenizer without a vocabulary is refused. If a
folder has no vocabulary, transformers itself makes a tokenizer of only special tokens, for which every word
is unknown. Embeddings of texts would then be meaningless, and no later step would notice.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from emberge.errors import CheckpointError
from emberge.files import open_regular
from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.compare_models import trunk_config
from emberge.model_folder.folder_files import (
    read_json,
    read_object,
    read_object_if_any,
    read_text,
)

# Files of tokenizers that name special tokens.
_TOKEN_FILES = ("tokenizer_config.json", "special_tokens_map.json")
# Files of tokenizers that are JSON objects.
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json")
# Vocabularies in formats that are never written; libraries read tokenizer.json in their place.
_OTHER_FORMATS = ("*.model", "*.spm", "*.tiktoken", "*.bpe", "*.codes", "*.vocab", "unigram.json")
# Files of tokenizers with words.
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", *_OTHER_FORMATS)
# Classes of tokenizers that have no words but those of their files.
_GENERIC_CLASSES = (None, "PreTrainedTokenizerFast", "TokenizersBackend")
# Tokens that a tokenizer inserts into every sequence.
_INSERTED_TOKENS = ("bos_token", "cls_token", "sep_token", "eos_token", "pad_token", "unk_token")


def read_tokenizer_json(path: Path) -> dict[str, Any]:
    """Return the content of a tokenizer.json: a model with a vocabulary, and added tokens with ids.

    The model's `type` is the algorithm, also if the file does not name it.

    Raises:
        CheckpointError: if it is not valid JSON, or not that of a tokenizer.
    """
    content = read_json(path)
    fault = _find_json_fault(content)
    if fault is not None:
        raise CheckpointError(f"{path}: is no tokenizer: {fault}; get it again")
    model = content["model"]
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


def find_unknown_token(content: Mapping[str, Any]) -> int | None:
    """Return the id of the unknown token of a tokenizer.json's content; None if there is none."""
    model = content["model"]
    if _find_algorithm(model) == "Unigram":
        number = model.get("unk_id")
    else:
        added = {one["content"]: one["id"] for one in content.get("added_tokens") or ()}
        token = model.get("unk_token")
        number = None if token is None else model["vocab"].get(token, added.get(token))
    return number if isinstance(number, int) else None


def split_merge(merge: Any) -> tuple[str, str]:
    """Return the two tokens of a merge of BPE, which tokenizer.json has as text or as a pair."""
    first, second = merge.split(" ", 1) if isinstance(merge, str) else merge
    return first, second


def list_other_formats(folder: Path) -> list[Path]:
    """Return the files of a folder with a whole vocabulary in a format that emberge does not write."""
    files = (path for pattern in _OTHER_FORMATS for path in sorted(folder.glob(pattern)))
    return [path for path in files if path.is_file()]


def _find_json_fault(content: Any) -> str | None:
    if not isinstance(content, Mapping) or not isinstance(content.get("model"), Mapping):
        return "it has no model"
    if not _is_vocabulary(content["model"].get("vocab", {})):
        return "its model's vocab has no tokens with ids"
    added = content.get("added_tokens")
    if not isinstance(added, list) or not all(_is_added(one) for one in added):
        return "its added_tokens have no content and id"
    return None


def _is_vocabulary(vocab: Any) -> bool:
    """Return whether a value is a vocabulary: ids by token or, for Unigram, pairs of token and score."""
    if isinstance(vocab, Mapping):
        return all(type(number) is int for number in vocab.values())
    is_pair_list = isinstance(vocab, list)
    return is_pair_list and all(isinstance(one, list) and len(one) == 2 for one in vocab)


def _is_added(entry: Any) -> bool:
    return (
        isinstance(entry, Mapping)
        and isinstance(entry.get("content"), str)
        and type(entry.get("id")) is int
    )


def with_mask_token(trunk: Path, token: str) -> dict[str, dict[str, Any]]:
    """Return the changed files, by name, that declare an existing token as mask token."""
    contents = {}
    for name in _TOKEN_FILES:
        path = trunk / name
        if path.is_file() or name == _TOKEN_FILES[0]:
            old = read_object(path) if path.is_file() else {}
            contents[name] = {**old, "mask_token": token}
    return contents


def load_tokenizer(folder: Path) -> Any:
    """Return transformers' tokenizer of a model's or a transformer's folder.

    Raises:
        CheckpointError: if the folder has no loadable tokenizer, or the tokenizer has no vocabulary or has
            more tokens than the model's embedding has rows.
    """
    from transformers import AutoTokenizer

    trunk = Checkpoint(folder).trunk
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(trunk), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # each class of tokenizers fails in its own way
        line = next(iter(str(error).strip().splitlines()), repr(error))
        raise CheckpointError(f"{trunk}: has no tokenizer to load: {line}") from error
    require_vocabulary(tokenizer, trunk)
    return tokenizer


def require_vocabulary(tokenizer: Any, folder: Path) -> None:
    """Require that a tokenizer loaded from `folder` has tokens, and the model an embedding row for each.

    Raises:
        CheckpointError: if it has no tokens, or the model lacks rows.
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    added = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
    words = [number for token, number in vocabulary.items() if token not in added]
    if not words:
        raise CheckpointError(
            f"{folder}: has no tokenizer, as its files hold no words (transformers makes one of "
            f"{len(vocabulary)} special tokens); get the tokenizer's files"
        )
    rows = _find_rows(folder)
    special_ids = [getattr(tokenizer, f"{name}_id") for name in _INSERTED_TOKENS]
    largest = max([*words, *(number for number in special_ids if isinstance(number, int))])
    if rows is not None and largest >= rows:
        raise CheckpointError(
            f"{folder}: its tokenizer has tokens up to id {largest:,}, and the model has {rows:,} rows of "
            "embeddings; get the tokenizer of this model"
        )


def _find_rows(folder: Path) -> int | None:
    size = trunk_config(Checkpoint(folder).config).get("vocab_size")
    return size if isinstance(size, int) else None


def tokenizer_faults(folder: Path) -> Iterator[str]:
    """Yield the faults of a tokenizer's files."""
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
