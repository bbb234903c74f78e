"""Without split weights, the functions for them work on ordinary tensors."""

from __future__ import annotations

import pytest
import torch
from emberge.ranks import clip_gradients, gather_weights
from emberge.ranks.fsdp import place_like
from torch import nn


def test_whole_weights_stay_the_same_objects_while_they_are_saved() -> None:
    tied = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    tied[1].weight = tied[0].weight
    before = dict(tied.named_parameters(remove_duplicate=False))
    with gather_weights(tied):
        during = dict(tied.named_parameters(remove_duplicate=False))
    assert all(during[name] is before[name] for name in before)
    assert during["0.weight"] is during["1.weight"]
    assert place_like(tied[0].weight, before["0.weight"]) is before["0.weight"]


@pytest.mark.parametrize(("limit", "clipped"), [(1.0, [0.6, 0.8]), (10.0, [3.0, 4.0])])
def test_gradients_are_scaled_to_a_norm_of_at_most_the_limit(
    limit: float, clipped: list[float]
) -> None:
    parameters = [nn.Parameter(torch.zeros(1)) for _ in range(3)]
    for parameter, gradient in zip(parameters, (3.0, 4.0), strict=False):
        parameter.grad = torch.tensor([gradient])
    assert float(clip_gradients(parameters, limit)) == 5.0
    grads = [p.grad.item() for p in parameters if p.grad is not None]
    assert grads == pytest.approx(clipped, rel=1e-5)
