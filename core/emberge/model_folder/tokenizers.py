"""The files of tokenizers in model folders: read and checked.

A tokenizer without a vocabulary is refused: transformers would load one with only special tokens, to which
every word is unknown. Embeddings of texts would then be meaningless, and no later step would notice.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge.errors import CheckpointError
from emberge.files import open_regular
from emberge.model_folder.folder_files import read_object, read_object_if_any, read_text

# Files of tokenizers that are JSON objects.
_JSON_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json")
# Vocabularies in formats that are never written; libraries read tokenizer.json in their place.
_OTHER_FORMATS = ("*.model", "*.spm", "*.tiktoken", "*.bpe", "*.codes", "*.vocab", "unigram.json")
# Files of tokenizers with words.
_VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", *_OTHER_FORMATS)
# Classes of tokenizers that have no words but those of their files.
_GENERIC_CLASSES = (None, "PreTrainedTokenizerFast", "TokenizersBackend")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The files of the tokenizer in a folder."""

    folder: Path

    @property
    def json_path(self) -> Path:
        """The path of tokenizer.json, which need not exist."""
        return self.folder / "tokenizer.json"

    def read_json(self) -> dict[str, Any]:
        """Return the content of tokenizer.json: its `model` with a vocabulary, and its `added_tokens`.

        The model's `type` is the algorithm, also if the file does not name it.

        Raises:
            CheckpointError: if the file is not valid JSON, or not that of a tokenizer.
        """
        content = read_object(self.json_path)
        model, added = content.get("model"), content.get("added_tokens")
        if not (isinstance(model, dict) and isinstance(added, list) and _have_ids(model, added)):
            raise CheckpointError(
                f"{self.json_path}: is no tokenizer: model or added_tokens lack tokens or ids; get it again"
            )
        return {**content, "model": {**model, "type": _find_algorithm(model)}}

    @staticmethod
    def split_merge(merge: Any) -> tuple[str, str]:
        """Return the two tokens of a merge of BPE, which tokenizer.json has as text or as a pair."""
        first, second = merge.split(" ", 1) if isinstance(merge, str) else merge
        return first, second

    def list_other_formats(self) -> list[Path]:
        """Return the files with a whole vocabulary in a format that emberge does not write."""
        files = (path for pattern in _OTHER_FORMATS for path in sorted(self.folder.glob(pattern)))
        return [path for path in files if path.is_file()]

    def describe_problems(self) -> Iterator[str]:
        """Yield what is wrong with the files, each with path and remedy."""
        config = self.folder / "tokenizer_config.json"
        vocabularies = [path for name in _VOCABULARIES for path in self.folder.glob(name)]
        if config.is_file() and not any(path.is_file() for path in vocabularies):
            class_name = read_object(config).get("tokenizer_class")
            if class_name in _GENERIC_CLASSES:  # others may count bytes or characters
                yield (
                    f"{self.folder}: has tokenizer_config.json and no tokenizer.json; get the whole model"
                )
        paths = [self.folder / name for name in _JSON_FILES]
        if not self.json_path.is_file():
            paths += (path for path in vocabularies if path.suffix != ".json")
        for path in filter(Path.is_file, paths):
            try:
                if path == self.json_path:
                    status = path.stat()
                    _load_tokenizer(path, status.st_ino, status.st_size, status.st_mtime_ns)
                elif path.suffix == ".json":
                    read_object(path)
                else:
                    open_regular(path).close()
            except CheckpointError as error:
                yield str(error)


def read_chat_template(folder: Path) -> Any:
    """Return a tokenizer's template of conversations, or its list of them; None if no file has one."""
    if (path := folder / "chat_template.jinja").is_file():
        return read_text(path)
    stored = (folder / name for name in ("chat_template.json", "tokenizer_config.json"))
    templates = (read_object_if_any(path).get("chat_template") for path in stored)
    return next((template for template in templates if template is not None), None)


def _have_ids(model: Mapping[str, Any], added: list[Any]) -> bool:
    """Return whether a tokenizer.json's tokens have ids or are listed, and the added tokens have texts."""
    vocabulary = model.get("vocab", {})
    ids = vocabulary.values() if isinstance(vocabulary, dict) else ()
    return {*map(type, ids)} <= {int} and all(
        isinstance(token, dict)
        and type(token.get("id")) is int
        and isinstance(token.get("content"), str)
        for token in added
    )


def _find_algorithm(model: Mapping[str, Any]) -> str:
    """Return the algorithm of a tokenizer.json's `model`: its type, or by its parts in files without one."""
    if model.get("type"):
        return str(model["type"])
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return "BPE" if "merges" in model else "WordPiece"


@functools.lru_cache(4)
def _load_tokenizer(path: Path, *_stamp: int) -> Any:
    """Return the tokenizer of a tokenizer.json, cached as long as the file does not change."""
    from tokenizers import Tokenizer

    TokenizerFiles(path.parent).read_json()
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise CheckpointError(f"{path}: is no tokenizer: {error}; get it again") from error
