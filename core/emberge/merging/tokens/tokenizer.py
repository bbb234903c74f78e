"""Reading of a tokenizer's files: its tokens, added tokens and algorithm."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emberge.model_folder import Checkpoint, TokenizerFiles, read_object_if_any, read_text

_SETTINGS_PARTS = ("normalizer", "pre_tokenizer")
_CONFIG_FILE, _SPECIAL_TOKENS_FILE, _TOKENIZER_FILE = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
)
_SPECIAL_TOKEN_KEYS = tuple(
    f"{n}_token" for n in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)
_SETTING_KEYS = (
    *("padding_side", "truncation_side", "add_bos_token", "add_eos_token", "add_prefix_space"),
    *("do_lower_case", "strip_accents", "tokenize_chinese_chars"),
)
# Parts of tokenizer.json between the text and the vocabulary, and after it.
_TOKENIZER_PARTS = ("normalizer", "pre_tokenizer", "post_processor")
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """A tokenizer, as described by the files in `folder`.

    `algorithm` is "WordPiece", "BPE", "Unigram" or "WordLevel"; `tokens` are all tokens with their ids;
    `added_entries` are the entries of tokenizer.json for tokens that were added to the base vocabulary;
    `settings` are its normalizer and pre-tokenizer.
    """

    folder: Path
    algorithm: str
    tokens: Mapping[str, int]
    added_entries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    base_size: int = 0
    """Number of tokens in the base vocabulary, which includes an added token only if it is in both."""
    is_complete: bool = True
    """True if tokenizer.json has the complete tokenizer."""

    @functools.cached_property
    def texts(self) -> dict[int, str]:
        """Map of ids to tokens."""
        return {i: token for token, i in self.tokens.items()}

    @functools.cached_property
    def size(self) -> int:
        """The largest id plus one."""
        return max(self.tokens.values(), default=-1) + 1

    @classmethod
    def read(cls, checkpoint: Checkpoint) -> Tokenizer | None:
        """Read a model's tokenizer; None if no file has its tokens.

        Raises:
            CheckpointError: if a file is not JSON, or not that of a tokenizer.
        """
        folder = checkpoint.tokenizer_folder
        files = TokenizerFiles(folder)
        whole = files.read_json() if files.json_path.is_file() else {}
        tokens = _list_tokens(whole) if whole else read_vocabulary(folder)
        if tokens is None:
            return None
        added = {entry["content"]: entry for entry in whole.get("added_tokens") or ()}
        model = whole.get("model") or {}
        return cls(
            folder,
            str(model.get("type", "WordPiece")),
            tokens,
            added,
            {part: whole.get(part) for part in _SETTINGS_PARTS} if whole else {},
            len(model.get("vocab") or tokens),
            bool(whole),
        )

    @classmethod
    def list_differences(cls, first: Checkpoint, second: Checkpoint) -> Iterator[str]:
        """Yield the differences of two models' tokenizers, their tokens' as one."""
        one, other = cls.read(first), cls.read(second)
        if one is not None and other is not None and one.tokens != other.tokens:
            yield "the tokens of their tokenizers differ"
        yield from list_token_notes(first, second)


def assign_token_ids(tokens: Mapping[str, int], added: Iterable[str]) -> dict[str, int]:
    """Return the ids that added tokens get in a tokenizer with this base vocabulary.

    The ids in the file do not count: an added token that is in the base vocabulary has the id from there, any
    other added token gets the id after the largest so far.
    """
    ids: dict[str, int] = {}
    last = -1
    for token in added:
        ids[token] = tokens.get(token, max(len(tokens), last + 1))
        last = max(last, ids[token])
    return ids


def quote_token(token: str | None) -> str:
    """Return a token quoted as in JSON; `nothing` for None."""
    return "nothing" if token is None else json.dumps(token, ensure_ascii=False)


def read_vocabulary(folder: Path) -> dict[str, int] | None:
    """Return the ids of all tokens, including added tokens; None if no file of the folder has them.

    Raises:
        CheckpointError: if a file is not that of a tokenizer.
    """
    files = TokenizerFiles(folder)
    if files.json_path.is_file():
        return _list_tokens(files.read_json())
    path = folder / "vocab.txt"
    if path.is_file():
        return {token: i for i, token in enumerate(split_vocabulary(read_text(path)))}
    return None


def split_vocabulary(text: str) -> list[str]:
    """Return the tokens of a vocab.txt, one a line; other separators of lines, as U+2028, are in tokens."""
    return [line.rstrip("\n") for line in io.StringIO(text, newline=None)]


def _list_tokens(content: Mapping[str, Any]) -> dict[str, int]:
    """Return the map of tokens to ids from the content of a tokenizer.json that was checked."""
    vocabulary = content["model"].get("vocab", {})
    if not isinstance(vocabulary, Mapping):  # a Unigram's pairs, in order of id
        vocabulary = {str(entry[0]): token_id for token_id, entry in enumerate(vocabulary)}
    return {**vocabulary, **{token["content"]: token["id"] for token in content["added_tokens"]}}


def list_token_notes(first: Checkpoint, second: Checkpoint) -> Iterator[str]:
    """Yield differences of two models' tokenizers except in vocabularies: `pad_token is a in one …`."""
    first_settings, second_settings = _read_settings(first), _read_settings(second)
    for key in (*_SPECIAL_TOKEN_KEYS, "additional_special_tokens", *_SETTING_KEYS):
        usual = "right" if key.endswith("_side") else None
        a, b = first_settings.get(key, usual), second_settings.get(key, usual)
        if a is not None and b is not None and a != b:
            yield f"the tokenizer's {key} is {_shorten_json(a)} in one and {_shorten_json(b)} in the other"
    files = [checkpoint.tokenizer_folder / _TOKENIZER_FILE for checkpoint in (first, second)]
    if not all(file.is_file() for file in files) or files[0].read_bytes() == files[1].read_bytes():
        return
    whole = [read_object_if_any(file) for file in files]
    for part in _TOKENIZER_PARTS:
        if whole[0].get(part) != whole[1].get(part):
            yield f"the tokenizers' {part} differs ({_TOKENIZER_FILE})"


def _read_settings(checkpoint: Checkpoint) -> dict[str, Any]:
    folder = checkpoint.tokenizer_folder
    settings = {
        **read_object_if_any(folder / _SPECIAL_TOKENS_FILE),
        **read_object_if_any(folder / _CONFIG_FILE),
    }
    return {key: _read_token_text(value) for key, value in settings.items()}


def _read_token_text(value: Any) -> Any:
    """Return a token's text from any of the forms that releases have written."""
    if isinstance(value, Mapping) and "content" in value:
        return value["content"]
    return [_read_token_text(one) for one in value] if isinstance(value, list) else value


def _shorten_json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
