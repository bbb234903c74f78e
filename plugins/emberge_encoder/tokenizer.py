"""Tokenizers of model folders, and the number of tokens that a prompt takes in a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from emberge.model_folder import Layout
from emberge.model_folder import load_tokenizer as load_folder_tokenizer


def load_tokenizer(layout: Layout) -> Any:
    """Return the tokenizer of a folder; it makes texts lower case where the folder asks for that.

    Raises:
        CheckpointError: for a tokenizer that is missing, cannot be loaded, or has no words.
    """
    tokenizer = load_folder_tokenizer(layout.trunk_folder)
    if layout.lower_case:
        _lower_texts(tokenizer)
    return tokenizer


def _lower_texts(tokenizer: Any) -> None:
    """Put a normalizer that makes texts lower case before those of the tokenizer."""
    from tokenizers import normalizers

    backend = tokenizer.backend_tokenizer
    before = [backend.normalizer] if backend.normalizer is not None else []
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *before])


def prompt_lengths(tokenizer: Any, encoded: Any, texts: Sequence[str], prompt: str) -> list[int]:
    """Return the number of tokens at the beginning of each text that belong to the prompt before it.

    They are the special tokens at the beginning and those that end inside the prompt, by character offsets: a
    token across the end of the prompt belongs to the text (CoDiEmb, arXiv:2508.11442). Tokenizers without
    offsets, and sentence-transformers always, count the tokens of the prompt alone. Both counts are equal
    unless the prompt's end and the text's beginning become one token, as a space and a word do in byte-level
    tokenizers: sentence-transformers counts that token, too.
    """
    if not prompt:
        return [0] * len(texts)
    if encoded.encodings is None:
        (alone,) = tokenizer([prompt])["input_ids"]
        length = len(alone) - (bool(alone) and alone[-1] in tokenizer.all_special_ids)
        return [min(length, len(ids)) for ids in encoded["input_ids"]]
    return [
        _count_prompt_tokens(encoding, text, len(prompt))
        for encoding, text in zip(encoded.encodings, texts, strict=True)
    ]


def _count_prompt_tokens(encoding: Any, text: str, characters: int) -> int:
    """Return the number of a text's tokens before the first one of what follows its first `characters`."""
    places = (encoding.char_to_token(place) for place in range(characters, len(text)))
    first = next((token for token in places if token is not None), None)
    if first is not None:
        return int(first)
    # The text is empty or cut off, and a special token at the end does not belong to the prompt.
    return int(len(encoding.ids) - sum(encoding.special_tokens_mask[-1:]))
