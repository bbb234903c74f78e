"""Weights by layer, from the norms of the models' changes in the layer."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from emberge import Block, FileRef, Measures, MergeStrategy, Positive, Stats, WeightedSum

if TYPE_CHECKING:
    from torch import Tensor

_NUMBERED = re.compile(r"\.\d+$")
_RUN = 8192
_NOWHERE = 1e-12  # a norm up to this has no direction
_STRAIGHT = 1e-6  # an angle below this is walked in a straight line
_OPPOSITE = 1e-3  # as near to a half turn a great circle is any


@dataclass(frozen=True, kw_only=True)
class LayerSoftmax(MergeStrategy):
    """Average of models layer by layer, each weighted by the softmax of its change in that layer.

    For model k and layer l the delta norm is ‖theta_k − theta_0‖ over all parameters of the layer, and
    theta^l = Σ softmax_k(norm_k^l / T) · theta_k^l. This is the hierarchical fusion of CoDiEmb (2025,
    arXiv:2508.11442, eqs. 10 to 12). With `group`, the models are the groups' averages. With raw norms, as in
    the paper, layers whose norms differ by a few units saturate the softmax at T = 1; `normalise` divides the
    norms first. The weights of each layer are in the artifact's `weights_by_layer`, and a report shows them.

    Example:
        merged:
          merge:
            models: [./a, ./b]
            base: ./base
            strategy: {layer_softmax: {temperature: 1.0}}
    """

    temperature: Positive = 1.0
    """T: a low value favours the model with the largest change, a high one averages."""
    normalise: Literal["none", "relative", "mean"] = "none"
    """Divisor of norms: none, as in the paper; the layer's norm in the base; or all models' mean norm."""
    deltas: FileRef | None = None
    """Statistics file with delta norms, such as those of specialists; by default the models' own norms."""
    non_layer: Literal["own", "global_mean", "uniform"] = "own"
    """Embeddings, final norm and heads: layers of their own, the layers' mean norm, or equal weights."""
    interpolate: Literal["linear", "slerp"] = "linear"
    """Interpolation of the weighted models; `slerp` takes two, tensor by tensor."""

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f"temperature must be above 0, not {self.temperature:g}")

    @property
    def arity(self) -> range:
        return range(2, 3) if self.interpolate == "slerp" else super().arity

    base_policy = "required"
    statistics_kind = "delta_norms"
    weight_role = "unused"
    scope = "model"
    passes = 1

    @property
    def expected_readings(self) -> float:
        return float(self.reads_rows(0))

    def reads_rows(self, number: int) -> bool:
        return self.reads_base(number) or self.interpolate == "slerp"

    def reads_base(self, number: int) -> bool:
        # The merge itself needs none, and with norms from a file no change is measured.
        return number == 0 and (self.deltas is None or self.normalise == "relative")

    def measure(self, block: Block, stats: Stats) -> Measures:
        import torch

        from_file = self.deltas is not None
        moved = self._read_norms(block) if from_file else _compute_squared_norms(block.deltas)
        measures: dict[str, Any] = {"stated" if from_file else "moved": {block.layer: moved}}
        if self.normalise == "relative":
            assert block.base is not None
            measures["base"] = {block.layer: _compute_squared_norms(block.base[None])}
        if self.interpolate == "slerp":
            first, second = block.tensors
            vectors = torch.stack([first, second, second - first])
            measures["gram"] = {block.name: block.gram(vectors)}
        return measures

    def join(self, measures: Sequence[Measures]) -> Measures:
        # A file's norm of a layer comes with each of its tensors, and is not to be added up.
        stated_norms = {k: v for m in measures for k, v in m.get("stated", {}).items()}
        summed = super().join([{k: v for k, v in m.items() if k != "stated"} for m in measures])
        return {**summed, "stated": stated_norms} if stated_norms else summed

    def conclude(self, block: Block, stats: Stats) -> Measures:
        measures = stats[-1]
        norms = measures.get("stated") or {k: v.sqrt() for k, v in measures["moved"].items()}
        base = {layer: value.sqrt() for layer, value in measures.get("base", {}).items()}
        weights = self.weights_of(block.layer, norms, base).tolist()
        findings = {"findings": dict(zip(block.models, weights, strict=True))}
        if self.interpolate == "linear":
            return {"coefficients": weights, **findings}
        return {
            "coefficients": _compute_slerp_factors(measures["gram"][block.name], weights[1]),
            **findings,
        }

    def weights_of(
        self, layer: str, norms: Mapping[str, Tensor], base: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the models' weights [models] for one layer, given the delta norms and base norms of all."""
        import torch

        scaled = {name: self._scale_norms(norms, name, base) for name in norms}
        layer_norms = scaled[layer]
        if not _NUMBERED.search(layer):
            if self.non_layer == "uniform":
                layer_norms = torch.zeros_like(layer_norms)
            elif self.non_layer == "global_mean":
                layers = [v for name, v in scaled.items() if _NUMBERED.search(name)] or [
                    layer_norms
                ]
                layer_norms = torch.stack(layers).mean(0)
        return torch.softmax(layer_norms / self.temperature, 0)

    def _scale_norms(
        self, norms: Mapping[str, Tensor], name: str, base: Mapping[str, Tensor]
    ) -> Tensor:
        import torch

        if self.normalise == "none":
            return norms[name]
        by = torch.stack(list(norms.values())).mean() if self.normalise == "mean" else base[name]
        # Nothing to divide by: a model where nothing moved, or a layer of zeros, has equal weights.
        return norms[name] / by if float(by) > 0 else torch.zeros_like(norms[name])

    def formula(self, block: Block, stats: Stats) -> WeightedSum:
        return WeightedSum(stats[0]["coefficients"])

    def _read_norms(self, block: Block) -> Tensor:
        missing = [label for label in block.models if label not in block.statistics]
        if missing:
            labels = ", ".join(sorted(block.statistics)) or "nothing"
            raise ValueError(
                f"the statistics file '{self.deltas}' has no delta norm of '{missing[0]}' for "
                f"{block.layer}; for that it has {labels}"
            )
        import torch

        norms = [float(block.statistics[label]) for label in block.models]
        if not all(math.isfinite(norm) and norm >= 0 for norm in norms):
            raise ValueError(f"the statistics file '{self.deltas}' has no norms for {block.layer}")
        return torch.tensor(norms, dtype=torch.float64)


def _compute_squared_norms(vectors: Tensor) -> Tensor:
    """Return float64 ‖v‖² [n] of [n, *rows]; partial norms of 8,192 elements have the input's dtype."""
    import torch

    flat = vectors.reshape(len(vectors), -1)
    runs = flat.shape[1] // _RUN
    head = flat[:, : runs * _RUN].reshape(len(flat), runs, _RUN)
    tail = flat[:, runs * _RUN :]
    norms = torch.linalg.vector_norm(head, dim=2), torch.linalg.vector_norm(tail, dim=1)[:, None]
    return torch.cat(norms, 1).double().square().sum(1)


def _compute_slerp_factors(gram: Tensor, t: float) -> list[float]:
    """Return the factors of a and b for the slerp at share t, from the inner products of a, b and b - a."""
    (aa, ab, ad), (_, bb, _), (_, _, dd) = gram.tolist()
    if min(aa, bb) <= _NOWHERE**2:
        return [1 - t, t]
    # b in the plane of both, a being the first axis. Differences keep a small angle that products would lose.
    near = dd <= min(aa, bb) / 4
    along, square = (aa + ad, dd - ad * ad / aa) if near else (ab, bb - ab * ab / aa)
    angle = math.atan2(math.sqrt(max(square, 0.0)), along / math.sqrt(aa))
    if not _STRAIGHT <= angle <= math.pi - _OPPOSITE:
        return [1 - t, t]
    return [math.sin((1 - t) * angle) / math.sin(angle), math.sin(t * angle) / math.sin(angle)]
