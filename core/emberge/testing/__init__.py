"""Laws for plugins: call these from your tests."""

from __future__ import annotations

from emberge.testing.losses import check_loss
from emberge.testing.merging import check_strategy
from emberge.testing.token_losses import check_token_loss
from emberge.testing.training import check_backbone, check_sampler

__all__ = ["check_backbone", "check_loss", "check_sampler", "check_strategy", "check_token_loss"]
