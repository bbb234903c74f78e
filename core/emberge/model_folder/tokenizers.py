"""Tokenizers of model folders, loaded in one place: never with a folder's code, and never made up.

Where a folder has no vocabulary, transformers makes a tokenizer of special tokens alone, for which every word
is unknown. Embeddings of such texts are of nothing, and no later step would notice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from emberge.errors import CheckpointError
from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.compare_models import trunk_config
from emberge.wording import printable

# Tokens that a tokenizer puts into a sequence of its own accord.
_PLACED = ("bos_token", "cls_token", "sep_token", "eos_token", "pad_token", "unk_token")


def load_tokenizer(folder: Path) -> Any:
    """Return transformers' tokenizer of a model's or a transformer's folder.

    Raises:
        CheckpointError: for a folder without one that can be loaded, one that knows no words, and one with
            more tokens than the model has rows.
    """
    from transformers import AutoTokenizer

    trunk = Checkpoint(folder).trunk
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(trunk), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # each class of tokenizers fails in its own way
        line = next(iter(str(error).strip().splitlines()), repr(error))
        raise CheckpointError(f"{trunk}: has no tokenizer to load: {printable(line)}") from error
    require_vocabulary(tokenizer, trunk)
    return tokenizer


def require_vocabulary(tokenizer: Any, folder: Path) -> None:
    """Make sure that a tokenizer loaded from `folder` knows words, and that the model has a row for each.

    Raises:
        CheckpointError: when it does not.
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    added = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
    words = [number for token, number in vocabulary.items() if token not in added]
    if not words:
        raise CheckpointError(
            f"{folder}: has no tokenizer, as its files hold no words (transformers makes one of "
            f"{len(vocabulary)} special tokens); get the tokenizer's files"
        )
    rows = _find_rows(folder)
    placed = [getattr(tokenizer, f"{name}_id") for name in _PLACED]
    largest = max([*words, *(number for number in placed if isinstance(number, int))])
    if rows is not None and largest >= rows:
        raise CheckpointError(
            f"{folder}: its tokenizer has tokens up to id {largest:,}, and the model has {rows:,} rows of "
            "embeddings; get the tokenizer of this model"
        )


def _find_rows(folder: Path) -> int | None:
    size = trunk_config(Checkpoint(folder).config).get("vocab_size")
    return size if isinstance(size, int) else None
