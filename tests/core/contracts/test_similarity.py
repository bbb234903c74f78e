"""Embeddings of each kind are compared as sentence-transformers compares them, in blocks too."""

from __future__ import annotations

import pytest
import torch
from emberge import Similarity
from emberge.contracts import MaxSim
from emberge.numerics import score_tables as tables
from sentence_transformers.multi_vector_encoder.scoring import colbert_kd_scores, colbert_scores
from torch import Tensor


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


def test_cosines_and_products_are_told_apart() -> None:
    left, right = torch.tensor([[3.0, 4.0]]), torch.tensor([[[6.0, 8.0], [-4.0, 3.0]]])
    cosine, product = Similarity(), Similarity("sparse", unit=False)
    assert cosine.own_scores(cosine.prepared(left), cosine.prepared(right)).tolist() == [[1.0, 0.0]]
    assert product.own_scores(product.prepared(left), right).tolist() == [[50.0, 0.0]]
    assert product.table(left, right[0]).tolist() == [[50.0, 0.0]]


@pytest.mark.parametrize("similarity", [Similarity(), Similarity("sparse", unit=False), MaxSim()])
def test_sums_in_blocks_are_the_sums_of_the_table(
    similarity: Similarity, monkeypatch: pytest.MonkeyPatch
) -> None:
    if similarity.kind == "token_vectors":
        left, right = (
            texts((6, 3, 4), [3, 1, 2, 3, 3, 2], 0)[0],
            texts((5, 2, 4), [2, 1] * 2 + [2], 1)[0],
        )
    else:
        left, right = torch.randn(6, 4), torch.randn(5, 4)
    omitted = torch.eye(6, 5, dtype=torch.bool)
    omitted[3] = True  # nothing is left of a row

    def measure() -> list[Tensor]:
        leaves = [left.clone().requires_grad_(), right.clone().requires_grad_()]
        sums = similarity.log_sums(*leaves, lambda block: omitted[block], 2.5)
        (sums * torch.arange(1.0, 7.0)).masked_fill(omitted.all(1), 0.0).sum().backward()
        return [sums.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    whole = measure()
    table = similarity.table(left, right) * 2.5
    expected = torch.logsumexp(table.masked_fill(omitted, -torch.inf), dim=1)
    kept = ~omitted.all(1)
    torch.testing.assert_close(whole[0][kept], expected[kept])
    assert (whole[0][~kept] < -1e30).all()
    monkeypatch.setattr(tables, "CELLS", 12)  # blocks of one or two rows
    for one, other in zip(whole, measure(), strict=True):
        torch.testing.assert_close(one, other)
