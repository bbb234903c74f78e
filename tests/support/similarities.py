"""What every comparison of embeddings keeps: sums in blocks of rows are those of the whole table."""

from __future__ import annotations

import pytest
import torch
from emberge import Similarity
from emberge.numerics import score_tables as tables
from torch import Tensor


def assert_block_sums(
    similarity: Similarity, left: Tensor, right: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare log-sums of six embeddings with five, and their gradients, with those of the table."""
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
    monkeypatch.setattr(tables, "MOST_CELLS", 12)  # blocks of one or two rows
    for one, other in zip(whole, measure(), strict=True):
        torch.testing.assert_close(one, other)
