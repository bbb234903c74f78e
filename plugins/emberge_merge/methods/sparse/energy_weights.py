"""Weights by the squared norm of each model's deltas."""

from __future__ import annotations

from dataclasses import dataclass

from emberge import Block, Measures, MergeTransform, NonNegative, Pass, Stats

from emberge_merge.methods.sparse.delta_sums import MagnitudeSums


@dataclass(frozen=True, kw_only=True)
class EnergyWeights(MergeTransform):
    """Weight each model by its share of the deltas' squared norm, tensor by tensor (the C of SCE).

    If no model changed a tensor, the weights are equal (Wan et al., 2024, arXiv:2408.07990). The recipe's
    weights are not used.

    Example:
        strategy: [{select_variance: {select_topk: 0.5}}, energy_weights, sign_consensus]
    """

    least_energy: NonNegative = 0.0
    """Sum of the deltas' mean squares over the models, up to which weights are equal.

    mergekit uses 1e-6, which is more than most fine-tuning changes: every tensor then gets equal weights.
    """

    base_policy = "required"
    weight_role = "unused"
    needs_torch = False
    passes = (Pass(),)

    def measure(self, block: Block, stats: Stats) -> Measures:
        return {"energy": block.evaluate(MagnitudeSums(squared=True)), "size": block.size}

    def apply(self, block: Block, stats: Stats) -> Block:
        energy = stats[0]["energy"] / max(stats[0]["size"], 1)
        total = float(energy.sum())
        if total <= self.least_energy:
            return block.replace(weights=energy * 0 + 1 / len(energy))
        return block.replace(weights=energy / total)
