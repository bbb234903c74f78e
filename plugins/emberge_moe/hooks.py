"""Mixtures of experts: upcycling, training with balanced routers, and monitoring (arXiv:2502.07972)."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import hookimpl
from emberge.architectures import Architecture


@hookimpl
def register_architectures() -> Mapping[str, Architecture]:
    module = "emberge_moe.modeling_emberge_routed"
    return {
        "emberge_routed": Architecture(
            config=f"{module}:EmbergeRoutedConfig",
            model=f"{module}:EmbergeRoutedModel",
            masked_lm=f"{module}:EmbergeRoutedForMaskedLM",
        )
    }


@hookimpl
def register_backbones() -> Mapping[str, str]:
    return {"routed": "emberge_moe.routed:Routed"}


@hookimpl
def register_steps() -> Mapping[str, str]:
    return {
        "downcycle": "emberge_moe.downcycle_step:Downcycle",
        "rope": "emberge_moe.rope_step:Rope",
        "upcycle": "emberge_moe.upcycle_step:Upcycle",
    }
