"""The tokenizer of a model folder."""

from __future__ import annotations

from typing import Any

from emberge import CheckpointError
from emberge.engine import Layout

__all__ = ["load_tokenizer"]


def load_tokenizer(layout: Layout) -> Any:
    """Return the tokenizer of a folder; it lowers the case of texts where the folder asks for that.

    Raises:
        CheckpointError: for a folder without one that can be loaded.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(layout.trunk_folder), local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        line = str(error).strip().splitlines()[0]
        raise CheckpointError(f"{layout.folder}: has no tokenizer to load: {line}") from error
    if layout.lower_case:
        _lower(tokenizer)
    return tokenizer


def _lower(tokenizer: Any) -> None:
    from tokenizers import normalizers

    backend = tokenizer.backend_tokenizer
    before = [backend.normalizer] if backend.normalizer is not None else []
    backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *before])
