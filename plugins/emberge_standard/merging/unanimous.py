"""Keep only where all models move the same way."""

from __future__ import annotations

from dataclasses import dataclass

from emberge import BasePolicy, Block, MergeTransform, Stats


@dataclass(frozen=True, kw_only=True)
class Unanimous(MergeTransform):
    """Zero every delta at the places where the models do not all have the same sign; zero breaks agreement.

    The sign rule that BOOM's text prints for SCE (arXiv:2602.05787, eqs. 7 and 8).
    """

    @property
    def base_policy(self) -> BasePolicy:
        return "required"

    def apply(self, block: Block, stats: Stats) -> Block:
        deltas = block.deltas
        agree = (deltas > 0).all(0) | (deltas < 0).all(0)
        return block.with_deltas(deltas * agree.to(deltas.dtype))
