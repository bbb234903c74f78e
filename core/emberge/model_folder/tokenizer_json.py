"""tokenizer.json of the tokenizers library, read so that what follows can rely on its form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emberge.errors import CheckpointError
from emberge.model_folder.json_files import read_json


def read_tokenizer_json(path: Path) -> dict[str, Any]:
    """Return the content of a tokenizer.json: a model with a vocabulary, and added tokens with ids.

    Raises:
        CheckpointError: when it is no JSON, or no tokenizer's.
    """
    content = read_json(path)
    fault = _fault(content)
    if fault is not None:
        raise CheckpointError(f"{path}: is no tokenizer: {fault}; get it again")
    return dict(content)


def _fault(content: Any) -> str | None:
    if not isinstance(content, Mapping) or not isinstance(content.get("model"), Mapping):
        return "it has no model"
    if not _is_vocabulary(content["model"].get("vocab", {})):
        return "its model's vocab has no tokens with ids"
    added = content.get("added_tokens")
    if not isinstance(added, list) or not all(_is_added(one) for one in added):
        return "its added_tokens have no content and id"
    return None


def _is_vocabulary(vocab: Any) -> bool:
    """Return whether it is tokens by id or, for Unigram, a list of pairs of token and score."""
    if isinstance(vocab, Mapping):
        return all(type(number) is int for number in vocab.values())
    pairs = isinstance(vocab, list)
    return pairs and all(isinstance(one, list) and len(one) == 2 for one in vocab)


def _is_added(entry: Any) -> bool:
    return (
        isinstance(entry, Mapping)
        and isinstance(entry.get("content"), str)
        and type(entry.get("id")) is int
    )
