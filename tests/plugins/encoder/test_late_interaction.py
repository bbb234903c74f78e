"""Late interaction is computed as sentence-transformers computes it, in blocks too."""

from __future__ import annotations

import pytest
import torch
from emberge_encoder.stock.multi_vector import MaxSim
from sentence_transformers.multi_vector_encoder.scoring import colbert_kd_scores, colbert_scores
from torch import Tensor

from tests.support.similarities import assert_block_sums


def texts(shape: tuple[int, ...], lengths: list[int], seed: int) -> tuple[Tensor, Tensor]:
    """Token vectors of length one, zero after each text's length, and the mask of their tokens."""
    vectors = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    mask = (torch.arange(shape[-2]) < torch.tensor(lengths)[:, None]).view(*shape[:-1])
    return torch.nn.functional.normalize(vectors, dim=-1) * mask[..., None], mask


def test_late_interaction_equals_the_librarys() -> None:
    queries, query_mask = texts((3, 4, 6), [4, 1, 3], 0)
    documents, document_mask = texts((5, 7, 6), [7, 2, 1, 5, 6], 1)
    # Negative products alone: padding, which is zero, must not win.
    documents[1] = -queries[0, 0] * document_mask[1, :, None]
    ours = MaxSim()
    expected = colbert_scores(
        queries, documents[:, None], queries_mask=query_mask, documents_mask=document_mask[:, None]
    )
    left, right = ours.prepared(queries * 3), ours.prepared(documents * 0.2)
    torch.testing.assert_close(ours.table(left, right), expected, atol=1e-6, rtol=1e-6)
    assert expected[0, 1] < 0

    own, own_mask = texts((3, 2, 7, 6), [7, 2, 1, 5, 6, 3], 2)
    expected = colbert_kd_scores(queries, own, queries_mask=query_mask, documents_mask=own_mask)
    scores = ours.own_scores(queries, ours.prepared(own))
    torch.testing.assert_close(scores, expected, atol=1e-6, rtol=1e-6)


def test_a_text_without_tokens_is_like_nothing() -> None:
    queries, _ = texts((2, 3, 6), [3, 2], 0)
    nothing = torch.zeros(1, 4, 6)
    assert MaxSim().table(queries, nothing).tolist() == [[0.0], [0.0]]
    assert MaxSim().table(nothing, queries).tolist() == [[0.0, 0.0]]


def test_sums_in_blocks_are_the_sums_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = (
        texts((6, 3, 4), [3, 1, 2, 3, 3, 2], 0)[0],
        texts((5, 2, 4), [2, 1] * 2 + [2], 1)[0],
    )
    assert_block_sums(MaxSim(), left, right, monkeypatch)
