"""A model class that transformers does not have, and the plugin that adds it: a mixing encoder of few rows.

As a module of its own, so that the plugin loads no torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput

MODEL_TYPE = "acme_mixer"


class MixerConfig(PreTrainedConfig):
    """Sizes of a mixer."""

    model_type = MODEL_TYPE
    vocab_size: int = 200
    hidden_size: int = 16
    num_hidden_layers: int = 2
    max_position_embeddings: int = 64
    pad_token_id: int | None = 0


class MixerModel(PreTrainedModel):
    """Embeddings and layers that add to each token what it shares with the mean of all."""

    config_class = MixerConfig
    base_model_prefix = "mixer"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            nn.Linear(config.hidden_size, config.hidden_size)
            for _ in range(config.num_hidden_layers)
        )
        self.post_init()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> BaseModelOutput:
        states = self.embeddings(input_ids)
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        weight = (mask / mask.sum(1, keepdim=True))[..., None]
        for layer in self.layers:
            states = states + torch.tanh(layer(states + (weight * states).sum(1, keepdim=True)))
        return BaseModelOutput(last_hidden_state=states)


class MixerForMaskedLM(PreTrainedModel):
    """A mixer with a head that predicts masked tokens."""

    config_class = MixerConfig
    base_model_prefix = "mixer"

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.mixer = MixerModel(config)
        self.head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def forward(self, input_ids: Tensor, **given: Any) -> MaskedLMOutput:
        return MaskedLMOutput(logits=self.head(self.mixer(input_ids, **given)[0]))
