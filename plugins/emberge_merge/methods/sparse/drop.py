"""Drop delta elements at random."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Block, MergeTransform, PerModel, Stats

if TYPE_CHECKING:
    from emberge.numerics import KernelIntegers
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Drop(MergeTransform):
    """Keep each element of a delta with probability `density`, and zero the others (DARE).

    The draw is a hash of seed, tensor, model and the element's position, so it does not depend on block size,
    number of workers or order. Follow it with `rescale` (Yu et al., 2023, arXiv:2311.03099).

    Example:
        strategy: [{drop: {density: 0.5}}, rescale, task_arithmetic]
    """

    density: PerModel = PerModel(1.0, within=(0, 1))
    """Probability that an element is kept."""

    revision = 2
    base_policy = "required"
    weight_role = "unused"
    needs_torch = False

    def apply(self, block: Block, stats: Stats) -> Block:
        densities = block.options.density

        def list_probabilities() -> Tensor:
            import torch

            chances = torch.from_numpy(densities).to(getattr(torch, block.rows.dtype))
            return chances.reshape(-1, *[1] * len(block.shape))

        drop = DropAtRandom(densities.tolist(), block.random_keys("drop"))
        return block.record(drop).replace(keep_probability=list_probabilities)


@dataclass(frozen=True, slots=True)
class DropAtRandom:
    """A change that keeps each value with its model's probability, by a hash of model and position."""

    densities: Sequence[float]
    keys: Sequence[tuple[object, ...]]

    kernel = "drop"

    def apply(self, deltas: Tensor, start: int) -> Tensor:
        from emberge.numerics import draw_uniform

        density = deltas.new_tensor(self.densities).view(-1, *[1] * (deltas.dim() - 1))
        # A mask of ones and zeros multiplies several times faster than one of truths.
        return draw_uniform(deltas, start, self.keys).lt_(density).mul_(deltas)

    def list_kernel_arguments(self) -> list[tuple[float, KernelIntegers]]:
        from emberge.numerics import hash_key

        words = [(*hash_key(key), 0) for key in self.keys]
        return list(zip(self.densities, words, strict=True))
