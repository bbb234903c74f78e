"""How two tokenizers of one vocabulary may still read text differently: special tokens, sides, lengths."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.json_files import read_json
from emberge.model_folder.model_files import TOKENIZER_FILES

__all__ = ["token_notes"]

_CONFIG, _TOKENS, _WHOLE = "tokenizer_config.json", "special_tokens_map.json", "tokenizer.json"
_SPECIAL = tuple(f"{n}_token" for n in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_SETTINGS = (
    *("padding_side", "truncation_side", "add_bos_token", "add_eos_token", "add_prefix_space"),
    *("do_lower_case", "strip_accents", "tokenize_chinese_chars"),
)
# Parts of tokenizer.json between the text and the vocabulary, and after it.
_PARTS = ("normalizer", "pre_tokenizer", "post_processor")
_LONG = 60


def token_notes(first: Checkpoint, second: Checkpoint) -> Iterator[str]:
    """In what the tokenizers of two models differ beside their vocabularies: `pad_token is a in one …`."""
    mine, other = _said(first), _said(second)
    for key in (*_SPECIAL, "additional_special_tokens", *_SETTINGS):
        a, b = mine.get(key), other.get(key)
        if a is not None and b is not None and a != b:
            yield f"the tokenizer's {key} is {_short(a)} in one and {_short(b)} in the other"
    files = [_place(checkpoint) / _WHOLE for checkpoint in (first, second)]
    if not all(file.is_file() for file in files) or files[0].read_bytes() == files[1].read_bytes():
        return
    whole = [_mapping(file) for file in files]
    for part in _PARTS:
        if whole[0].get(part) != whole[1].get(part):
            yield f"the tokenizers' {part} differs ({_WHOLE})"


def _said(checkpoint: Checkpoint) -> dict[str, Any]:
    place = _place(checkpoint)
    said = {**_mapping(place / _TOKENS), **_mapping(place / _CONFIG)}
    return {key: _text(value) for key, value in said.items()}


def _text(value: Any) -> Any:
    """A token as its text, whichever way a release wrote it."""
    if isinstance(value, Mapping) and "content" in value:
        return value["content"]
    return [_text(one) for one in value] if isinstance(value, list) else value


def _place(checkpoint: Checkpoint) -> Path:
    """The folder that the tokenizer lies in: the transformer's, or the whole model's."""
    has = any((checkpoint.trunk / name).is_file() for name in TOKENIZER_FILES)
    return checkpoint.trunk if has else checkpoint.folder


def _mapping(path: Path) -> Mapping[str, Any]:
    found = read_json(path) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONG else f"{text[:_LONG]}…"
