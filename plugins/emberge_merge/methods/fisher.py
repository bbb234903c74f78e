"""The mean weighted by how much each model's loss depends on each element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from emberge import Block, FileRef, Measures, MergeStrategy, Pass, Stats

if TYPE_CHECKING:
    from torch import Tensor

# Added to each (normalised) Fᵢ: numbers that no loss depends on are averaged evenly.
_FISHER_FLOOR = 1e-6


@dataclass(frozen=True, kw_only=True)
class Fisher(MergeStrategy):
    """Average the models element by element, weighted by their diagonal Fisher information.

    W = Σ αᵢ Fᵢ∘Wᵢ / Σ αᵢ Fᵢ, where Fᵢ is the mean squared gradient of model i's training loss on the model's
    own data (Matena and Raffel, 2022, arXiv:2111.09832). An element that strongly affects one model's loss
    therefore comes mostly from that model. `measure_statistics: {measure: fisher}` measures Fᵢ once; its
    files name their models.

    Example:
        fisher:
          measure_statistics:
            models: {a: ./a, b: ./b}
            measure: fisher
            data: ./pairs.jsonl
        merged:
          merge:
            models: [{model: ./a, name: a}, {model: ./b, name: b}]
            strategy: {fisher: {statistics: $fisher}}
    """

    statistics: tuple[FileRef, ...]
    """Statistics files with the Fisher information of every model, in any order."""
    normalise: Literal["none", "tensor", "model"] = "model"
    """Divisor of each Fᵢ: 1 (`none`), its mean over the tensor, or its mean over the model.

    With `none`, a model with larger gradients, or one that was measured in larger batches, dominates.
    """

    base_policy = "forbidden"
    statistics_kind = "fisher"
    statistics_of = "models"

    @property
    def passes(self) -> Sequence[Pass]:
        if self.normalise == "none":
            return ()
        return (Pass(scope="model" if self.normalise == "model" else "tensor"),)

    def measure(self, block: Block, stats: Stats) -> Measures:
        totals: dict[str, Any] = {}
        counts: dict[str, float] = {}
        for model in block.models:
            # An entry of no shape is the zero of a tensor that no embedding depends on: it has no scale.
            if block.entry_shape(model):
                information = self._read_information(block, model)
                totals[model] = float(information.double().sum())
                counts[model] = float(information.numel())
        return {"total": totals, "count": counts}

    def merge(self, block: Block, stats: Stats) -> Tensor:
        import torch

        weights = torch.from_numpy(block.weights).to(block.tensors.device)
        self._require_entries(block)
        if float(weights.min()) < 0:
            raise ValueError("Fisher information is weighted by shares, which are not negative")
        means = stats[0] if stats else {}
        shares = torch.stack(
            [
                self._read_information(block, model)
                .to(block.tensors.dtype)
                .expand(block.tensors.shape[1:])
                / _mean_information(means, model)
                for model in block.models
            ]
        )
        shares += _FISHER_FLOOR
        shares *= weights.to(block.tensors).reshape(-1, *[1] * (block.tensors.dim() - 1))
        return _average_weighted(block.tensors, shares)

    def _require_entries(self, block: Block) -> None:
        for model in block.models:
            entry = block.entry_shape(model)
            if entry is None:
                hint = "give it another strategy by a rule"
                raise ValueError(f"nothing was measured of it in '{model}'; {hint}")
            if entry not in ((), block.shape):
                shapes = f"{list(entry)}, not {list(block.shape)}"
                raise ValueError(f"the Fisher information of '{model}' has shape {shapes}")

    def _read_information(self, block: Block, model: str) -> Tensor:
        """Return one model's information for the block's rows."""
        information: Tensor = block.statistics[model]
        if information.numel() and not float(information.min()) >= 0:
            raise ValueError(f"the Fisher information of '{model}' holds NaN or negative numbers")
        return information


def _mean_information(measured: Measures, model: str) -> float:
    mean = measured.get("total", {}).get(model, 0.0) / measured.get("count", {}).get(model, 1.0)
    return mean if mean > 0 else 1.0


def _average_weighted(tensors: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean of [models, *rows], computed so that equal models give their exact value."""
    total_weight, first_tensor = weights.sum(0), tensors[0]
    weighted_change = sum(
        (
            weight * (tensor - first_tensor)
            for weight, tensor in zip(weights[1:], tensors[1:], strict=True)
        ),
        first_tensor.new_zeros(()),
    )
    merged: Tensor = first_tensor + weighted_change / total_weight
    return merged
