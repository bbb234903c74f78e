"""A model's tokens and its number of embeddings, from its files alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from emberge import EmbergeError
from emberge.model_folder import Checkpoint


def known_tokens(folder: Path) -> set[str] | None:
    """Return the tokens of a folder's tokenizer; None where no tokenizer.json lists them as usual."""
    trunk = Checkpoint(folder).trunk
    try:
        content: Any = json.loads((trunk / "tokenizer.json").read_text(encoding="utf-8"))
        vocabulary = content["model"]["vocab"]
        # A unigram tokenizer lists pairs of a token and its score, others a mapping of tokens to ids.
        own = vocabulary if isinstance(vocabulary, dict) else [token for token, _ in vocabulary]
        added = {one["content"] for one in content.get("added_tokens") or ()}
        return {*own, *added, *_added_on_loading(trunk / "tokenizer_config.json")}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _added_on_loading(path: Path) -> Iterator[str]:
    """Return every text of a tokenizer's settings: those that are tokens are added when it is loaded."""
    if path.is_file():
        yield from _texts(json.loads(path.read_text(encoding="utf-8")))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)


def rows_of(folder: Path) -> int | None:
    """Return the number of a model's token embeddings; None where its weights do not exist."""
    from emberge.tensor_names import is_vocabulary

    try:
        specs = Checkpoint(folder).names.specs
    except EmbergeError:
        return None
    return next((spec.shape[0] for name, spec in specs.items() if is_vocabulary(name)), None)
