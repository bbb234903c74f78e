"""The mask token: a token that no text contains, written into the tokenizer's files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emberge import CheckpointError, suggest
from emberge.model_folder import Checkpoint, read_object
from emberge_encoder import build_config, load_tokenizer

# Files of tokenizers that name special tokens.
_TOKEN_FILES = ("tokenizer_config.json", "special_tokens_map.json")


@dataclass(frozen=True, slots=True)
class MaskToken:
    """A token of a checkpoint's tokenizer that masks other tokens, with its id."""

    token: str
    id: int

    def read_files(self, checkpoint: Checkpoint) -> Mapping[str, Mapping[str, Any]]:
        """Return the tokenizer's files that name the mask token, by path in the checkpoint."""
        contents = {}
        for name in _TOKEN_FILES:
            path = checkpoint.trunk / name
            if path.is_file() or name == _TOKEN_FILES[0]:
                content = read_object(path) if path.is_file() else {}
                contents[checkpoint.locate_in_trunk(name)] = {**content, "mask_token": self.token}
        return contents


def find_mask_token(checkpoint: Checkpoint, requested: str | int | None) -> MaskToken | None:
    """Return a checkpoint's mask token: the `requested` token or id, or else the tokenizer's own.

    Raises:
        CheckpointError: if the tokenizer lacks the token, or the embeddings have no row for it.
    """
    tokenizer = load_tokenizer(checkpoint.trunk)
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    token = tokenizer.mask_token if requested is None else requested
    if token is None:
        return None
    mask_token = _find_token(checkpoint.folder, token, vocabulary)
    rows = int(build_config(checkpoint.trunk, checkpoint.config).get_text_config().vocab_size)
    if mask_token.id >= rows:
        raise CheckpointError(
            f"{checkpoint.folder}: the mask token '{mask_token.token}' has the id {mask_token.id}, and the "
            f"model has embeddings of {rows} tokens only; name one of those as mask_token"
        )
    return mask_token


def _find_token(folder: Path, text_or_id: str | int, vocabulary: Mapping[str, int]) -> MaskToken:
    if isinstance(text_or_id, str):
        if text_or_id in vocabulary:
            return MaskToken(text_or_id, vocabulary[text_or_id])
        raise CheckpointError(
            f"{folder}: its tokenizer has no token '{text_or_id}'{suggest(text_or_id, list(vocabulary))}; "
            "name an existing token as mask_token, or its id"
        )
    token = next((token for token, id_ in vocabulary.items() if id_ == text_or_id), None)
    if token is None:
        raise CheckpointError(
            f"{folder}: its tokenizer has no token with the id {text_or_id}; the highest is "
            f"{max(vocabulary.values())}; name an existing token as mask_token, or its id"
        )
    return MaskToken(token, text_or_id)
