"""Packed rows: several texts in one row of a transformer's input that do not attend to each other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from emberge import TokenisedText
from torch import Tensor

DOCUMENTS_FEATURE = "documents"
_NO_TEXT = -1


def collate_rows(rows: Sequence[Sequence[TokenisedText]], pad: int) -> dict[str, Tensor]:
    """Return padded features; `documents` has the index of each token's text in its row, -1 at padding."""
    lengths = [sum(len(text.ids) for text in row) for row in rows]
    shape = len(rows), max(lengths)
    ids, positions = np.full(shape, pad, np.int64), np.zeros(shape, np.int64)
    documents = np.full(shape, _NO_TEXT, np.int64)
    for row, texts in enumerate(rows):
        start = 0
        for number, text in enumerate(texts):
            piece = slice(start, start + len(text.ids))
            ids[row, piece], positions[row, piece] = text.ids, np.arange(len(text.ids))
            documents[row, piece] = number
            start = piece.stop
    features = {"input_ids": ids, "position_ids": positions, DOCUMENTS_FEATURE: documents}
    if min(lengths) < max(lengths):
        features["attention_mask"] = (documents != _NO_TEXT).astype(np.int64)
    return {name: torch.from_numpy(array) for name, array in features.items()}


def compute_packed_states(trunk: Any, features: Mapping[str, Tensor]) -> Tensor:
    """Return the last hidden states [b, t, d] of rows of texts, each text computed as if alone."""
    ids, documents = features["input_ids"], features[DOCUMENTS_FEATURE]
    positions = features["position_ids"] + _find_first_position(trunk)
    with _separate_documents(trunk.config._attn_implementation, documents):
        # Padding sees itself as a text does; without a mask positions would be taken for one.
        mask = torch.ones_like(ids)
        output = trunk(input_ids=ids, attention_mask=mask, position_ids=positions)
    states: Tensor = output[0]
    return states


def _find_first_position(trunk: Any) -> int:
    """Return the position id of a text's first token; RoBERTa models start at the padding id + 1."""
    embeddings: Any = getattr(trunk, "embeddings", None)
    counts_positions = hasattr(embeddings, "create_position_ids_from_input_ids")
    return int(embeddings.padding_idx) + 1 if counts_positions else 0


@contextlib.contextmanager
def _separate_documents(kernel: str, documents: Tensor) -> Iterator[None]:
    """Restrict the attention masks that a model builds inside the block to tokens of one document.

    transformers recognises packed texts by their positions if attention is causal, but not if it is
    bidirectional. The model still builds its own mask, with its windows. The mask is only narrowed, so it
    keeps the form that the kernel needs.
    """
    from transformers.masking_utils import (
        ALL_MASK_ATTENTION_FUNCTIONS,
        and_masks,
        packed_sequence_mask_function,
    )

    build_mask = ALL_MASK_ATTENTION_FUNCTIONS[kernel]
    same_text = packed_sequence_mask_function(documents)

    def build_narrowed_mask(*args: Any, mask_function: Any, **options: Any) -> Any:
        # transformers leaves out a mask that hides nothing, before it knows of the documents.
        options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return build_mask(*args, mask_function=and_masks(mask_function, same_text), **options)

    ALL_MASK_ATTENTION_FUNCTIONS[kernel] = build_narrowed_mask
    try:
        yield
    finally:
        # The mapping falls back to transformers' own function for a kernel without an entry.
        del ALL_MASK_ATTENTION_FUNCTIONS[kernel]  # type: ignore[no-untyped-call]
