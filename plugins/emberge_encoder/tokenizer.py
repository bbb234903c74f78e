"""The tokenizer of a model folder, and the tokens of a prompt that comes before texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from emberge.model_folder import Layout
from emberge.model_folder import load_tokenizer as load_folder_tokenizer

__all__ = ["load_tokenizer", "prompt_lengths"]


def load_tokenizer(layout: Layout) -> Any:
    """Return the tokenizer of a folder; it lowers the case of texts where the folder asks for that.

    Raises:
        CheckpointError: for a folder without one that can be loaded and knows words.
    """
    tokenizer = load_folder_tokenizer(layout.trunk_folder)
    if layout.lower_case:
        _lower(tokenizer)
    return tokenizer


def _lower(tokenizer: Any) -> None:
    from tokenizers import normalizers

    backend = tokenizer.backend_tokenizer
    before = [backend.normalizer] if backend.normalizer is not None else []
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *before])


def prompt_lengths(tokenizer: Any, encoded: Any, texts: Sequence[str], prompt: str) -> list[int]:
    """Return the number of first tokens of each text that are of its prompt, with which it begins.

    They are the special tokens at the beginning and those that end inside the prompt, by character offsets:
    a token across its end is the text's (CoDiEmb, arXiv:2508.11442). sentence-transformers counts the tokens
    of the prompt alone, as is done here for tokenizers without offsets. Both agree where the prompt's own
    tokens are the first ones of prompt and text. Where its end and the text's beginning become one token, as
    a space and a word do in byte-level tokenizers, sentence-transformers leaves that token out as well.
    """
    if not prompt:
        return [0] * len(texts)
    if encoded.encodings is None:
        (alone,) = tokenizer([prompt])["input_ids"]
        length = len(alone) - (bool(alone) and alone[-1] in tokenizer.all_special_ids)
        return [min(length, len(ids)) for ids in encoded["input_ids"]]
    return [
        _length(encoding, text, len(prompt))
        for encoding, text in zip(encoded.encodings, texts, strict=True)
    ]


def _length(encoding: Any, text: str, characters: int) -> int:
    places = (encoding.char_to_token(place) for place in range(characters, len(text)))
    first = next((token for token in places if token is not None), None)
    if first is not None:
        return int(first)
    # Nothing of the text is left, and a special token at the end is not the prompt's.
    return int(len(encoding.ids) - sum(encoding.special_tokens_mask[-1:]))
