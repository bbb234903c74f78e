"""Mixtures of experts: upcycled, trained with balanced routers, and seen (arXiv:2502.07972)."""

from __future__ import annotations

from collections.abc import Mapping

from emberge import Step, hookimpl


@hookimpl
def register_steps() -> Mapping[str, type[Step]]:
    from emberge_moe.upcycle.upcycle_step import Upcycle

    return {"upcycle": Upcycle}
