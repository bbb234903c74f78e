"""A training of InfoNCE in plain torch: read the model, embed, compare, step.

There are no chunks, no gradient cache, no packing, no ranks and no resumption: a batch is one forward and one
backward pass of all its texts. What `train` gives, emberge's loop gives to the rounding of float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from transformers import AutoModel, AutoTokenizer

Pair = tuple[str, str]


@dataclass(frozen=True)
class Recipe:
    """What decides the weights of a training, beside the model and the batches."""

    temperature: float
    learning_rate: float
    warmup: int = 0
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    epsilon: float = 1e-8


def train(
    folder: Path, batches: Sequence[Sequence[Pair]], recipe: Recipe
) -> tuple[list[float], dict[str, Tensor]]:
    """Return the loss of each step, and the weights of the trained model by their names on disk."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    optimizer = build_optimizer(model, recipe)
    losses = []
    for step, pairs in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * rate(step, len(batches), recipe.warmup)
        anchors, positives = (embed(model, tokenizer, texts) for texts in zip(*pairs, strict=True))
        loss = contrast(anchors, positives, recipe.temperature)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), recipe.max_grad_norm)
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def embed(model: nn.Module, tokenizer: Any, texts: Sequence[str]) -> Tensor:
    """Return the unit mean [n, d] of each text's token vectors."""
    inputs = tokenizer(list(texts), padding=True, return_tensors="pt")
    states = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1)
    return normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


def contrast(anchors: Tensor, positives: Tensor, temperature: float) -> Tensor:
    """Return InfoNCE: each anchor's own positive is the right one of all positives of the batch."""
    return cross_entropy(anchors @ positives.T / temperature, torch.arange(len(anchors)))


def build_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """Return AdamW, of which biases and norms have no decay."""
    weights = list(model.parameters())
    groups = [
        {"params": [w for w in weights if w.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [w for w in weights if w.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, eps=recipe.epsilon)


def rate(step: int, steps: int, warmup: int) -> float:
    """Return the factor of the learning rate: it rises during the warm-up, and then falls to nothing."""
    if step < warmup:
        return (step + 1) / warmup
    return (steps - step) / max(1, steps - warmup)
