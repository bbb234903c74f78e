"""Trainings and passes in float64, where another order of sums shows in the sixteenth digit only.

As a plugin file it adds the backbone `exact_encoder` to recipes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from emberge import Backbone, hookimpl
from emberge_encoder import TextEncoder


@dataclass(frozen=True, kw_only=True)
class ExactEncoder(TextEncoder):
    """An encoder of text with weights in float64."""

    def load(
        self, checkpoint: Path, *, device: str, dtype: str, predicts_tokens: bool = False
    ) -> Any:
        encoder = super().load(
            checkpoint, device=device, dtype=dtype, predicts_tokens=predicts_tokens
        )
        encoder.module.double()
        return encoder


@hookimpl
def register_backbones() -> Mapping[str, type[Backbone]]:
    return {"exact_encoder": ExactEncoder}


@contextlib.contextmanager
def in_float64() -> Iterator[None]:
    """Make float64 the dtype of what has no other: what losses learn, and their constants."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
