"""Weights by layer, from how far each model moved there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from emberge import BasePolicy, Block, FileRef, Measures, MergeStrategy, Scope, Stats, WeightRole

if TYPE_CHECKING:
    from torch import Tensor

_NUMBERED = re.compile(r"\.\d+$")


@dataclass(frozen=True, kw_only=True)
class LayerSoftmax(MergeStrategy):
    """Average the models layer by layer, each weighted by the softmax of how far it moved in that layer.

    For model k and layer l the delta norm is ‖theta_k − theta_0‖ over all parameters of the layer, and
    theta^l = Σ softmax_k(norm_k^l / T) · theta_k^l: hierarchical fusion of CoDiEmb (2025,
    arXiv:2508.11442, eqs. 10 to 12). After `group` the models are the groups' soups. Raw norms saturate
    the softmax, so they are normalised unless told otherwise.
    """

    temperature: float = 1.0
    """T: low lets the model that moved furthest win, high averages."""
    normalise: Literal["none", "relative", "mean"] = "mean"
    """What norms are divided by: nothing, the base's norm of the layer, the mean over layers and models."""
    deltas: FileRef | None = None
    """A statistics file with the norms of specialists, one entry a group; default: the models' own norms."""
    non_layer: Literal["own", "global_mean", "uniform"] = "own"
    """Embeddings, final norm and heads: layers of their own, the layers' mean norm, or equal weights."""
    interpolate: Literal["linear", "slerp"] = "linear"
    """How the weighted models meet; `slerp` takes two, tensor by tensor."""

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f"temperature must be above 0, not {self.temperature:g}")

    @property
    def arity(self) -> range:
        return range(2, 3) if self.interpolate == "slerp" else super().arity

    @property
    def base_policy(self) -> BasePolicy:
        return "required"

    @property
    def weight_role(self) -> WeightRole:
        return "unused"

    @property
    def scope(self) -> Scope:
        return "model"

    @property
    def passes(self) -> int:
        return 1

    def measure(self, block: Block, stats: Stats) -> Measures:
        moved = block.deltas.flatten(1).square().sum(1).double()
        base = block.tensors.new_zeros(()) if block.base is None else block.base.square().sum()
        found: dict[str, Any] = {
            "moved": {block.layer: moved},
            "base": {block.layer: base.double()},
        }
        if self.interpolate == "slerp":
            found["gram"] = {block.name: block.gram(block.tensors)}
        if self.deltas is not None:
            found["specialists"] = {block.layer: self._specialists(block)}
        return found

    def join(self, measures: Sequence[Measures]) -> Measures:
        joined = dict(
            super().join([{k: v for k, v in m.items() if k != "specialists"} for m in measures])
        )
        if self.deltas is not None:
            joined["specialists"] = {k: v for m in measures for k, v in m["specialists"].items()}
        return joined

    def conclude(self, block: Block, stats: Stats) -> Measures:
        known = stats[-1]
        norms = known.get("specialists") or {k: v.sqrt() for k, v in known["moved"].items()}
        base = {layer: value.sqrt() for layer, value in known["base"].items()}
        weights = self.weights_of(block.layer, norms, base)
        return {"weights": weights, "gram": known.get("gram", {}).get(block.name)}

    def weights_of(
        self, layer: str, norms: Mapping[str, Tensor], base: Mapping[str, Tensor]
    ) -> Tensor:
        """The models' weights [models] for one layer, given every layer's delta norms and base norm."""
        import torch

        scaled = dict(norms)
        if self.normalise == "relative":
            scaled = {k: v / base[k].clamp(min=1e-12) for k, v in norms.items()}
        elif self.normalise == "mean":
            mean = torch.stack(list(norms.values())).mean().clamp(min=1e-300)
            scaled = {k: v / mean for k, v in norms.items()}
        own = scaled[layer]
        if not _NUMBERED.search(layer):
            if self.non_layer == "uniform":
                own = torch.zeros_like(own)
            elif self.non_layer == "global_mean":
                layers = [v for k, v in scaled.items() if _NUMBERED.search(k)] or [own]
                own = torch.stack(layers).mean(0)
        return torch.softmax(own / self.temperature, 0)

    def merge(self, block: Block, stats: Stats) -> Tensor:
        weights = stats[0]["weights"]
        if self.interpolate == "linear":
            return block.combine(weights)
        return block.combine(_slerp(stats[0]["gram"], float(weights[1])))

    def _specialists(self, block: Block) -> Tensor:
        missing = [label for label in block.models if label not in block.statistics]
        if missing:
            raise ValueError(
                f"{block.name}: the statistics file '{self.deltas}' has no delta norm of '{missing[0]}' "
                f"for {block.layer}; it knows {', '.join(sorted(block.statistics)) or 'nothing'}"
            )
        return block.weights.new_tensor([float(block.statistics[label]) for label in block.models])


def _slerp(gram: Tensor, t: float) -> list[float]:
    """Coefficients of a spherical interpolation at t, from the Gram matrix of two tensors."""
    import math

    a, b = (math.sqrt(max(float(gram[i, i]), 0.0)) for i in (0, 1))
    if a <= 1e-12 or b <= 1e-12:
        return [1 - t, t]
    cosine = float(gram[0, 1]) / (a * b)
    angle = 2 * math.atan2(math.sqrt(max(2 - 2 * cosine, 0.0)), math.sqrt(max(2 + 2 * cosine, 0.0)))
    if angle < 1e-6:
        return [1 - t, t]
    return [math.sin((1 - t) * angle) / math.sin(angle), math.sin(t * angle) / math.sin(angle)]
