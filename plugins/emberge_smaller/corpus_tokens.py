"""Tokens of a corpus as a tokenizer reads it: counted, and compared between a tokenizer and its cut form."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from emberge import CheckpointError
from emberge.encoding import TEXTS_AT_ONCE
from emberge.model_folder import Checkpoint
from emberge_encoder import load_tokenizer
from numpy.typing import NDArray


def read_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a model folder in its fast form, without truncation and padding.

    Raises:
        CheckpointError: if it cannot be loaded, or has no fast form.
    """
    tokenizer_folder = Checkpoint(folder).tokenizer_folder
    tokenizer = getattr(load_tokenizer(tokenizer_folder), "backend_tokenizer", None)
    if tokenizer is None:
        raise CheckpointError(f"{folder}: its tokenizer has no fast form (tokenizer.json)")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def count_rows(tokenizer: Any) -> int:
    """Return the number of rows of a table with one for each id, gaps included: the largest id + 1."""
    return int(max(tokenizer.get_vocab(with_added_tokens=True).values())) + 1


def count_tokens(tokenizer: Any, texts: Iterable[str], size: int) -> tuple[NDArray[np.int64], int]:
    """Return how often each token occurs in texts, int64 [size], and the number of texts."""
    counts, texts_seen, remaining = np.zeros(size, np.int64), 0, iter(texts)
    while batch := list(itertools.islice(remaining, TEXTS_AT_ONCE)):
        encodings = tokenizer.encode_batch(batch, add_special_tokens=False)
        ids = itertools.chain.from_iterable(encoding.ids for encoding in encodings)
        counts += np.bincount(np.fromiter(ids, np.int64), minlength=size)
        texts_seen += len(batch)
    return counts, texts_seen


def count_with_prompts(
    tokenizer: Any, texts: Sequence[str], prompts: Iterable[str], size: int
) -> NDArray[np.int64]:
    """Return how often each token occurs in the texts, int64 [size], with each prompt before them."""
    counts = np.zeros(size, np.int64)
    for prompt in prompts:
        counts += count_tokens(tokenizer, (prompt + text for text in texts), size)[0]
    return counts


def count_covered(
    tokenizer: Any, texts: Sequence[str], prompts: Sequence[str], rows: Sequence[int]
) -> int:
    """Return the number of texts whose tokens are all among `rows`, with each prompt before them."""
    kept = frozenset(rows)
    prompted = ([prompt + text for prompt in prompts] for text in texts)
    encoded = (tokenizer.encode_batch(forms, add_special_tokens=False) for forms in prompted)
    return sum(all(kept.issuperset(form.ids) for form in forms) for forms in encoded)


def require_equal_tokens(
    tokenizer: Any, cut: Any, new_ids: Mapping[int, int], texts: Sequence[str]
) -> None:
    """Require that a cut tokenizer gives texts of kept tokens the same tokens under their new ids.

    Raises:
        CheckpointError: if it does not; names the first such text.
    """
    pairs = zip(tokenizer.encode_batch(texts), cut.encode_batch(texts), strict=True)
    for text, (before, after) in zip(texts, pairs, strict=True):
        if [new_ids.get(token_id) for token_id in before.ids] != after.ids:
            raise CheckpointError(
                f"the cut tokenizer reads {text[:200]!r} in another way, so its kind cannot be cut; report "
                "this tokenizer"
            )
