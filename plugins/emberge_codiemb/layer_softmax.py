"""Weights by layer, from the norms of the models' changes in the layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from emberge import Block, FileRef, Measures, MergeStrategy, Pass, Positive, Stats, WeightedSum
from emberge.contracts import add_measures

if TYPE_CHECKING:
    from torch import Tensor

_RUN_LENGTH = 8192


@dataclass(frozen=True, kw_only=True)
class LayerSoftmax(MergeStrategy):
    """Average of models layer by layer, each weighted by the softmax of its change in that layer.

    For model k and layer l the delta norm is ‖theta_k − theta_0‖ over all parameters of the layer, and
    theta^l = Σ softmax_k(norm_k^l / T) · theta_k^l. This is the hierarchical fusion of CoDiEmb (2025,
    arXiv:2508.11442, eqs. 10 to 12). With `group`, the models are the groups' averages. With raw norms, as in
    the paper, layers whose norms differ by a few units saturate the softmax at T = 1; `normalise` divides the
    norms first. Embeddings, final norm and heads are layers of their own. The weights of each layer are in
    the artifact's `weights_by_layer`, and a report shows them.

    Example:
        strategy: {layer_softmax: {temperature: 1.0}}
    """

    temperature: Positive = 1.0
    """T: a low value favours the model with the largest change, a high one averages."""
    normalise: Literal["none", "relative", "mean"] = "none"
    """Divisor of norms: none, as in the paper; the layer's norm in the base; or all models' mean norm."""
    deltas: FileRef | None = None
    """Statistics file with delta norms, such as those of specialists; by default the models' own norms."""

    base_policy = "required"
    statistics_kind = "delta_norms"
    weight_role = "unused"
    reads_base = False

    @property
    def passes(self) -> Sequence[Pass]:
        # With norms from a file no change is measured.
        measures_rows = self.deltas is None or self.normalise == "relative"
        reads: Literal["all", "nothing"] = "all" if measures_rows else "nothing"
        return (Pass(scope="model", reads=reads, join=_join_norms),)

    def measure(self, block: Block, stats: Stats) -> Measures:
        from_file = self.deltas is not None
        moved = self._read_norms(block) if from_file else _compute_squared_norms(block.deltas)
        measures: dict[str, Any] = {"stated" if from_file else "moved": {block.layer: moved}}
        if self.normalise == "relative":
            assert block.base is not None
            measures["base"] = {block.layer: _compute_squared_norms(block.base[None])}
        return measures

    def conclude(self, block: Block, stats: Stats) -> Measures:
        measures = stats[-1]
        norms = measures.get("stated") or {k: v.sqrt() for k, v in measures["moved"].items()}
        base = {layer: value.sqrt() for layer, value in measures.get("base", {}).items()}
        weights = self.compute_weights(block.layer, norms, base).tolist()
        findings = dict(zip(block.models, weights, strict=True))
        return {"coefficients": weights, "findings": findings}

    def compute_weights(
        self, layer: str, norms: Mapping[str, Tensor], base: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the models' weights [models] for one layer, given the norms of all layers."""
        import torch

        return torch.softmax(self._scale_norms(norms, layer, base) / self.temperature, 0)

    def _scale_norms(
        self, norms: Mapping[str, Tensor], name: str, base: Mapping[str, Tensor]
    ) -> Tensor:
        import torch

        if self.normalise == "none":
            return norms[name]
        by = torch.stack(list(norms.values())).mean() if self.normalise == "mean" else base[name]
        # Without a norm to divide by (no model moved, or the base's layer is zero) all models weigh alike.
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


def _join_norms(measures: Sequence[Measures]) -> Measures:
    # A file's norm of a layer comes with each of its tensors, and is not to be added up.
    stated_norms = {k: v for m in measures for k, v in m.get("stated", {}).items()}
    summed = add_measures([{k: v for k, v in m.items() if k != "stated"} for m in measures])
    return {**summed, "stated": stated_norms} if stated_norms else summed


def _compute_squared_norms(vectors: Tensor) -> Tensor:
    """Return float64 ‖v‖² [n] of [n, *rows]; partial norms of 8,192 elements have the input's dtype."""
    import torch

    flat = vectors.reshape(len(vectors), -1)
    runs = flat.shape[1] // _RUN_LENGTH
    head = flat[:, : runs * _RUN_LENGTH].reshape(len(flat), runs, _RUN_LENGTH)
    tail = flat[:, runs * _RUN_LENGTH :]
    norms = torch.linalg.vector_norm(head, dim=2), torch.linalg.vector_norm(tail, dim=1)[:, None]
    return torch.cat(norms, 1).double().square().sum(1)
