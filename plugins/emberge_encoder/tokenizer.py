"""The tokenizer of a model folder."""

from __future__ import annotations

from typing import Any

from emberge.model_folder import Layout
from emberge.model_folder import load_tokenizer as load_folder_tokenizer

__all__ = ["load_tokenizer"]


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
