"""Layers that read other tokens are found without dropout, and the model is left as it was."""

from __future__ import annotations

import pytest
import torch
from emberge_encoder.attention import find_mixers
from torch import Tensor, nn


class Sums(nn.Module):
    """Layer that adds to each token what is before it."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.999)

    def forward(self, states: Tensor) -> Tensor:
        return states + self.dropout(self.inside(states.cumsum(1)))


class Small(nn.Module):
    """Model of one such layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(16, 4)
        self.sums = Sums()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states: Tensor = self.sums(self.words(input_ids)) * attention_mask[..., None]
        return states


@pytest.mark.parametrize("training", [True, False])
def test_a_model_is_searched_without_dropout_and_left_in_its_mode(training: bool) -> None:
    torch.manual_seed(0)
    model = Small().train(training)
    found = [(one.name, one.earlier, one.later) for one in find_mixers(model, 16)]
    assert found == [("sums", True, False)]
    assert {part.training for part in model.modules()} == {training}
    assert not any(part._forward_hooks for part in model.modules())
