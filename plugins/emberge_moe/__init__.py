"""Mixtures of experts: upcycled, trained with balanced routers, and seen (arXiv:2502.07972)."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import Architecture, Backbone, Step, hookimpl


@hookimpl
def register_architectures() -> Mapping[str, Architecture]:
    place = "emberge_moe.architecture.modeling_emberge_routed"
    return {
        "emberge_routed": Architecture(
            config=f"{place}:EmbergeRoutedConfig",
            model=f"{place}:EmbergeRoutedModel",
            masked_lm=f"{place}:EmbergeRoutedForMaskedLM",
        )
    }


@hookimpl
def register_backbones() -> Mapping[str, type[Backbone]]:
    from emberge_moe.routed import Routed

    return {"routed": Routed}


@hookimpl
def register_steps() -> Mapping[str, type[Step]]:
    from emberge_moe.downcycle.downcycle_step import Downcycle
    from emberge_moe.rope import Rope
    from emberge_moe.upcycle.upcycle_step import Upcycle

    return {"downcycle": Downcycle, "rope": Rope, "upcycle": Upcycle}
