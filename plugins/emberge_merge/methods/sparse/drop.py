"""Drop delta elements at random."""

from __future__ import annotations

from dataclasses import dataclass

from emberge import Block, MergeTransform, PerModel, Stats


@dataclass(frozen=True, kw_only=True)
class Drop(MergeTransform):
    """Keep each element of a delta with probability `density`, and zero the others (DARE).

    The draw is a hash of seed, tensor, model and the element's position, so it does not depend on block size,
    number of workers or order. Follow it with `rescale` (Yu et al., 2023, arXiv:2311.03099).

    Example:
        merged:
          merge:
            models: [./a, ./b]
            base: ./base
            strategy: [{drop: {density: 0.5}}, rescale, task_arithmetic]
    """

    density: PerModel = PerModel(1.0, within=(0, 1))
    """Probability that an element is kept."""

    revision = 2
    base_policy = "required"
    weight_role = "unused"
    needs_torch = False

    def apply(self, block: Block, stats: Stats) -> Block:
        return block.drop_at_random(block.options.density, "drop")
