"""How far to go from the base, by how far the models agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from emberge import BasePolicy, Block, Measures, MergeStrategy, Stats, WeightRole

if TYPE_CHECKING:
    from torch import Tensor

_SINGULAR = 1e-6


@dataclass(frozen=True, kw_only=True)
class ModelStock(MergeStrategy):
    """Go from the base towards the models' mean by how far their changes agree (arXiv:2403.19522).

    W = t · mean(Wᵢ) + (1 - t) · W₀ with t = N c / (1 + (N - 1) c) and c the mean cosine of all pairs of
    changes (Jang et al., 2024). Where models disagree (c < 0) the formula walks away from them; `clamp`
    keeps t within 0 and 1. `granularity: row` takes a t for each output neuron. Weights are not used.
    """

    clamp: bool = True
    granularity: Literal["tensor", "row"] = "tensor"

    @property
    def arity(self) -> range:
        return range(2, 1_000_000)

    @property
    def base_policy(self) -> BasePolicy:
        return "required"

    @property
    def weight_role(self) -> WeightRole:
        return "unused"

    @property
    def passes(self) -> int:
        return 1 if self.granularity == "tensor" else 0

    def measure(self, block: Block, stats: Stats) -> Measures:
        return {"gram": block.gram(block.deltas)}

    def conclude(self, block: Block, stats: Stats) -> Measures:
        return {"t": float(self._ratio(stats[-1]["gram"]))}

    def merge(self, block: Block, stats: Stats) -> Tensor:
        assert block.base is not None
        count = len(block.models)
        deltas = block.deltas
        if self.granularity == "tensor":
            mean = block.combine([stats[0]["t"] / count] * count, deltas)
            return mean.add_(block.base)
        rows = block.tensors.shape[1] if len(block.shape) > 1 else 1
        flat = deltas.reshape(count, rows, -1)
        wide = flat.double()
        products = [[(a * b).sum(-1) for b in wide] for a in wide]
        gram = wide.new_empty((rows, count, count))
        for i, line in enumerate(products):
            for j, value in enumerate(line):
                gram[:, i, j] = value
        ratio = self._ratio(gram).to(flat.dtype)[:, None]
        mean = block.combine([1 / count] * count, flat)
        return (mean * ratio).reshape(block.base.shape).add_(block.base)

    def _ratio(self, gram: Tensor) -> Tensor:
        """T of each Gram matrix [..., n, n]; a pair without a direction counts as orthogonal."""
        count = gram.shape[-1]
        norms = gram.diagonal(dim1=-2, dim2=-1).sqrt()
        pairs = norms[..., :, None] * norms[..., None, :]
        cosines = gram / pairs.where(pairs > 0, pairs.new_tensor(1.0))
        total = cosines.clamp(-1, 1).triu(1).sum((-2, -1))
        cosine = total / (count * (count - 1) / 2)
        below = 1 + (count - 1) * cosine
        sound = below.abs() >= _SINGULAR
        ratio = (count * cosine / below.where(sound, below.new_tensor(1.0))).where(
            sound, below.new_tensor(0.0)
        )
        return ratio.clamp(0, 1) if self.clamp else ratio
