"""Weights from how far each model moved."""

from __future__ import annotations

from dataclasses import dataclass

from emberge import BasePolicy, Block, Measures, MergeTransform, Stats, WeightRole

_TINY = 1e-6


@dataclass(frozen=True, kw_only=True)
class EnergyWeights(MergeTransform):
    """Weight each model by its share of the deltas' squared norm, tensor by tensor (the C of SCE).

    Where nothing moved the weights are equal (Wan et al., 2024, arXiv:2408.07990). The weights of the
    recipe are not used.
    """

    @property
    def base_policy(self) -> BasePolicy:
        return "required"

    @property
    def weight_role(self) -> WeightRole:
        return "unused"

    @property
    def passes(self) -> int:
        return 1

    def measure(self, block: Block, stats: Stats) -> Measures:
        deltas = block.deltas.flatten(1)
        return {"energy": deltas.square().sum(1).double(), "size": deltas.shape[1]}

    def apply(self, block: Block, stats: Stats) -> Block:
        energy = stats[0]["energy"] / max(stats[0]["size"], 1)
        total = energy.sum()
        if float(total) < _TINY:
            return block.replace(weights=energy.new_full(energy.shape, 1 / len(energy)))
        return block.replace(weights=energy / total)
