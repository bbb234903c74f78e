"""The balance loss of routers equals transformers' own, and chunks add up to the batch."""

from __future__ import annotations

import pytest
import torch
from emberge_moe.balance import Loads, RouterSums, Routing, compute_balance_loss, sum_routings
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

PROBABILITIES = torch.tensor(
    [[0.7, 0.1, 0.1, 0.1], [0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.6, 0.1], [0.25, 0.35, 0.3, 0.1]],
    dtype=torch.float64,
)
WORKED = {1: 1.2625, 2: 1.16875}


def _routing(logits: torch.Tensor, top_k: int) -> Routing:
    return Routing(logits, logits.topk(top_k).indices)


def _sums(logits: torch.Tensor, top_k: int, mask: torch.Tensor | None = None) -> RouterSums:
    """Those of several layers [layers, tokens, experts]."""
    return sum_routings([_routing(one, top_k) for one in logits], mask)


@pytest.mark.parametrize("top_k", WORKED)
def test_the_balance_loss_is_the_number_worked_out_by_hand(top_k: int) -> None:
    sums = _sums(PROBABILITIES.log()[None], top_k)
    found = float(compute_balance_loss(sums, sums.loads, top_k))
    assert found == pytest.approx(WORKED[top_k], abs=1e-12)


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_the_balance_loss_times_top_k_is_transformers_loss(top_k: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 10, 5) * 3
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    sums = _sums(logits, top_k, mask)
    want = load_balancing_loss_func(tuple(logits), 5, top_k, mask)
    assert top_k * float(compute_balance_loss(sums, sums.loads, top_k)) == pytest.approx(
        float(want), rel=1e-6
    )


def test_padding_does_not_change_the_sums() -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 6, 4, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    padded = _sums(logits, 2, mask)
    plain = _sums(logits[:, mask.flatten().bool()], 2)
    torch.testing.assert_close(padded.loads.flatten(), plain.loads.flatten(), rtol=0, atol=1e-12)
    torch.testing.assert_close(padded.probabilities, plain.probabilities, rtol=0, atol=1e-12)


def test_the_loss_is_the_mean_over_layers() -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 8, 4, dtype=torch.float64)
    both = _sums(logits, 2)
    each = [_sums(one[None], 2) for one in logits]
    want = sum(float(compute_balance_loss(one, one.loads, 2)) for one in each) / 3
    assert float(compute_balance_loss(both, both.loads, 2)) == pytest.approx(want, abs=1e-12)


def test_losses_of_chunks_add_up_to_the_batchs_with_gradients() -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 12, 4, dtype=torch.float64).requires_grad_()
    whole = _sums(logits, 2)
    loss = compute_balance_loss(whole, whole.loads, 2)
    (gradient,) = torch.autograd.grad(loss, logits)
    parts = [_sums(piece, 2) for piece in logits.split([5, 1, 6], 1)]
    counts = torch.stack([part.loads.flatten() for part in parts]).sum(0)
    batch = Loads.of(counts, 2)
    terms = [compute_balance_loss(part, batch, 2) for part in parts]
    summed = torch.stack(terms).sum()
    torch.testing.assert_close(summed, loss, rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.autograd.grad(summed, logits)[0], gradient, rtol=0, atol=1e-12)


def test_an_even_load_has_the_least_loss_of_one() -> None:
    even = torch.eye(4, dtype=torch.float64) * 1e-9  # each token has an expert of its own
    sums = _sums(even[None], 1)
    assert float(compute_balance_loss(sums, sums.loads, 1)) == pytest.approx(1, abs=1e-6)
