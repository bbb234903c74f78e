"""Mixtures of experts: rotary positions for XLM-R, upcycling, balanced routers (arXiv:2502.07972)."""

from __future__ import annotations

from emberge import make_hook
from emberge.architectures import Architecture

_CLASSES = "emberge_moe.modeling_emberge_routed"
register_architectures = make_hook(
    emberge_routed=Architecture(
        config=f"{_CLASSES}:EmbergeRoutedConfig",
        model=f"{_CLASSES}:EmbergeRoutedModel",
        masked_lm=f"{_CLASSES}:EmbergeRoutedForMaskedLM",
    )
)
register_backbones = make_hook(routed="emberge_moe.routed_backbone:Routed")
register_steps = make_hook(
    rope="emberge_moe.rope_step:Rope",
    upcycle="emberge_moe.upcycle_step:Upcycle",
)
