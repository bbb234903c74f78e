"""A loaded model is asked whether it reads later tokens, without dropout, and left as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from emberge_encoder.text.blocks import reads_later_tokens
from torch import Tensor, nn
from transformers import AutoModel

from tests.support import tiny


class Sums(nn.Module):
    """Model that adds to each token those before it, or all."""

    def __init__(self, *, later: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(16, 4)
        self.dropout = nn.Dropout(0.999)
        self.later = later

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor]:
        states = self.words(input_ids)
        sums = states.sum(1, keepdim=True) if self.later else states.cumsum(1)
        return ((states + self.dropout(sums)) * attention_mask[..., None],)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("later", [True, False])
def test_a_model_is_asked_without_dropout_and_left_in_its_mode(later: bool, training: bool) -> None:
    torch.manual_seed(0)
    model = Sums(later=later).train(training)
    assert reads_later_tokens(model, 16) is later
    assert {part.training for part in model.modules()} == {training}
    assert not any(part._forward_hooks for part in model.modules())


@pytest.mark.parametrize("architecture", ["bert", "xlm-roberta", "modernbert", "qwen3"])
def test_encoders_read_later_tokens(architecture: str, tmp_path: Path) -> None:
    model = AutoModel.from_pretrained(tiny.checkpoint(tmp_path / "m", architecture))
    assert reads_later_tokens(model, 50) is (architecture != "qwen3")
