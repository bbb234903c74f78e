from __future__ import annotations

import math

import pytest
import torch
from emberge_moe.balance import (
    Loads,
    RouterHealth,
    RouterSums,
    balance_loss,
    sum_routings,
)
from emberge_moe.routers import Routing
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
def test_the_balance_is_the_worked_number(top_k: int) -> None:
    sums = _sums(PROBABILITIES.log()[None], top_k)
    found = float(balance_loss(sums, sums.loads, top_k))
    assert found == pytest.approx(WORKED[top_k], abs=1e-12)


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_times_the_choices_a_token_it_is_transformers_own_without_padding(top_k: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 10, 5) * 3
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    sums = _sums(logits, top_k, mask)
    want = load_balancing_loss_func(tuple(logits), 5, top_k, mask)
    assert top_k * float(balance_loss(sums, sums.loads, top_k)) == pytest.approx(
        float(want), rel=1e-6
    )


def test_padding_counts_for_nothing() -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 6, 4, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    padded = _sums(logits, 2, mask)
    plain = _sums(logits[:, mask.flatten().bool()], 2)
    torch.testing.assert_close(padded.loads.flat(), plain.loads.flat(), rtol=0, atol=1e-12)
    torch.testing.assert_close(padded.probabilities, plain.probabilities, rtol=0, atol=1e-12)


def test_layers_are_averaged() -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 8, 4, dtype=torch.float64)
    both = _sums(logits, 2)
    each = [_sums(one[None], 2) for one in logits]
    want = sum(float(balance_loss(one, one.loads, 2)) for one in each) / 3
    assert float(balance_loss(both, both.loads, 2)) == pytest.approx(want, abs=1e-12)


def test_parts_of_a_batch_add_up_with_their_gradients() -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 12, 4, dtype=torch.float64).requires_grad_()
    whole = _sums(logits, 2)
    loss = balance_loss(whole, whole.loads, 2)
    (gradient,) = torch.autograd.grad(loss, logits)
    parts = [_sums(piece, 2) for piece in logits.split([5, 1, 6], 1)]
    counts = torch.stack([part.loads.flat() for part in parts]).sum(0)
    batch = Loads.of(counts, 2)
    terms = [balance_loss(part, batch, 2) for part in parts]
    summed = torch.stack(terms).sum()
    torch.testing.assert_close(summed, loss, rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.autograd.grad(summed, logits)[0], gradient, rtol=0, atol=1e-12)


def test_an_even_load_is_the_least_switch_balance() -> None:
    even = torch.eye(4, dtype=torch.float64) * 1e-9  # each token has an expert of its own
    sums = _sums(even[None], 1)
    assert float(balance_loss(sums, sums.loads, 1)) == pytest.approx(1, abs=1e-6)


def _counts(loads: list[list[float]], gates: list[float], tokens: float) -> torch.Tensor:
    experts = torch.tensor(loads, dtype=torch.float64).flatten()
    return torch.cat([experts, torch.tensor([*gates, tokens], dtype=torch.float64)])


def test_health_is_read_from_counts() -> None:
    health = RouterHealth((1, 3), 4, 2)
    counts = _counts([[500, 500, 500, 500], [1000, 994, 3, 3]], [600, 900], 1000)
    found = health.values(counts)
    assert [found[f"load/1/{e}"] for e in range(4)] == [0.5] * 4
    assert found["load/3/2"] == 0.003
    assert found["load_entropy/1"] == pytest.approx(1)
    parts = [0.5, 0.497, 0.0015, 0.0015]
    entropy = -sum(p * math.log(p) for p in parts) / math.log(4)
    assert found["load_entropy/3"] == pytest.approx(entropy)
    assert (found["dead_experts/1"], found["dead_experts/3"]) == (0, 2)
    assert (found["gate_sum/1"], found["gate_sum/3"]) == (0.6, 0.9)
    assert health.values(2 * counts) == pytest.approx(found)


def test_a_collapsed_layer_is_named_with_what_to_do() -> None:
    health = RouterHealth((1, 3), 4, 2)
    even, gone = [500.0] * 4, [1000.0, 994, 3, 3]
    assert health.warnings(_counts([even, even], [600, 900], 1000)) == []
    (warning,) = health.warnings(_counts([even, gone], [600, 900], 1000))
    assert "layer 3" in warning
    assert "raise balance" in warning
    # One dead expert of four is seen in the metrics, and is no collapse.
    assert not health.warnings(_counts([even, [1000, 600, 397, 3]], [600, 900], 1000))


def test_an_even_share_of_many_experts_is_not_dead() -> None:
    health = RouterHealth((0,), 200, 1)
    assert health.values(_counts([[5.0] * 200], [100], 1000))["dead_experts/0"] == 0


@pytest.mark.parametrize(("layers", "rows"), [(2, 8), (20, 20)])
def test_loads_over_steps_are_a_figure(layers: int, rows: int) -> None:
    from emberge_report import figure_data

    health = RouterHealth(tuple(range(layers)), 4, 2)
    points = [
        (step, health.values(_counts([[2.0, 1, 1, 0]] * layers, [1.0] * layers, 2)))
        for step in (10, 20, 30)
    ]
    (figure,) = figure_data("trained", health.figures(points))
    assert figure.heat_map is not None
    assert figure.heat_map.columns == ["10", "20", "30"]
    assert len(figure.heat_map.rows) == rows
    if rows == 8:
        assert figure.heat_map.values[0] == [1.0] * 3
        assert figure.heat_map.values[3] == [0.0] * 3
