"""Drop delta elements at random."""

from __future__ import annotations

from dataclasses import dataclass

from emberge import BasePolicy, Block, MergeTransform, PerModel, Stats


@dataclass(frozen=True, kw_only=True)
class Drop(MergeTransform):
    """Keep each element of a delta with probability `density`, zero the others (DARE).

    The draw is a hash of seed, tensor, model and the element's place, so it is the same for any block
    size, worker and order. Follow it with `rescale` (Yu et al., 2023, arXiv:2311.03099).
    """

    density: PerModel = PerModel(1.0, within=(0, 1))
    """Probability that an element is kept."""

    @property
    def base_policy(self) -> BasePolicy:
        return "required"

    def apply(self, block: Block, stats: Stats) -> Block:
        density = block.options.density.view(-1, *[1] * (block.tensors.dim() - 1))
        deltas = block.deltas
        keep = (block.uniform("drop") < density).to(deltas.dtype)
        return block.with_deltas(deltas * keep, kept=density)
