"""RegMean: linear layers whose outputs are nearest to those of each model on that model's inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Block, FileRef, MergeStrategy, Share, Stats

if TYPE_CHECKING:
    from torch import Tensor

# Share of a Gram matrix' mean diagonal added to its diagonal, for inputs that are always zero.
_RIDGE = 1e-6


@dataclass(frozen=True, kw_only=True)
class Regmean(MergeStrategy):
    """Merge linear layers so that, on each model's inputs, outputs are nearest to that model's.

    W = (Σ αᵢ Wᵢ Gᵢ)(Σ αᵢ Gᵢ)⁻¹ with Gᵢ = Xᵢᵀ Xᵢ, the Gram matrix of the inputs of model i's layer: the closed
    form of a regression (Jin et al., 2023, arXiv:2212.09849). For the token embedding, Gᵢ is diagonal and
    contains the counts of tokens, so a row comes from the models that saw its token. Every other tensor is
    averaged by the weights. `measure_statistics: {measure: gram}` measures Gram matrices once; the files
    record which models they belong to. Each layer is merged as a whole, in float64.

    Example:
        grams:
          measure_statistics:
            models: {a: ./a, b: ./b}
            measure: gram
            data: ./pairs.jsonl
        merged:
          merge:
            models: [{model: ./a, name: a}, {model: ./b, name: b}]
            strategy: {regmean: {statistics: $grams}}
    """

    statistics: tuple[FileRef, ...]
    """Statistics files with the Gram matrices of every model, in any order."""
    off_diagonal: Share = 0.9
    """Factor on the entries off a Gram matrix' diagonal: 1 keeps them, 0 treats inputs as uncorrelated."""

    base_policy = "forbidden"
    statistics_kind = "gram"
    statistics_of = "models"

    def needs_whole(self, block: Block) -> bool:
        return len(block.shape) == 2 and self._count_entry_dimensions(block) == 2

    def merge(self, block: Block, stats: Stats) -> Tensor:
        weights = block.weights.tolist()
        self._require_shapes(block)
        if min(weights) < 0 and self._count_entry_dimensions(block):
            raise ValueError("Gram matrices are weighted by shares, which are not negative")
        if self._count_entry_dimensions(block) == 2:
            return self._merge_layer(block, weights)
        if self._count_entry_dimensions(block) == 1:
            return self._merge_embedding(block)
        total = sum(weights)
        return block.combine([weight / total for weight in weights])

    def _require_shapes(self, block: Block) -> None:
        shape = block.shape
        for model in block.models:
            entry = block.entry_shape(model)
            if entry is not None and entry not in ((shape[-1],) * 2, shape[:1]):
                shapes = f"{list(entry)}, of {list(shape)}"
                raise ValueError(f"the Gram matrix of '{model}' has shape {shapes}")

    def _count_entry_dimensions(self, block: Block) -> int:
        """Return the dimensions of the models' entries: 2 for Gram matrices, 1 for diagonals, 0 for none."""
        shapes = [block.entry_shape(model) for model in block.models]
        return len(shapes[0]) if shapes[0] and None not in shapes else 0

    def _merge_layer(self, block: Block, weights: list[float]) -> Tensor:
        """Return one merged linear layer, computed so that equal models give their exact layer."""
        import torch

        first_matrix = block.tensors[0].double()
        size = first_matrix.shape[1]
        total = first_matrix.new_zeros(size, size)
        weighted_change = torch.zeros_like(first_matrix)
        for model, tensor, weight in zip(block.models, block.tensors, weights, strict=True):
            gram = self._read_gram(block, model).mul_(weight)
            total += gram
            weighted_change += (tensor.double() - first_matrix) @ gram
        if not float(total.diagonal().max()) > 0:
            shares = [weight / sum(weights) for weight in weights]
            return block.combine(shares)
        # The matrices are symmetric, so the inverse on the right is a solution of the transpose.
        merged: Tensor = first_matrix + torch.linalg.solve(total, weighted_change.mT).mT
        return merged.to(block.tensors.dtype)

    def _read_gram(self, block: Block, model: str) -> Tensor:
        gram: Tensor = block.statistics[model].double()
        diagonal = gram.diagonal().clone()
        if not bool(gram.isfinite().all()) or float(diagonal.min()) < 0:
            raise ValueError(
                f"the Gram matrix of '{model}' holds NaN, infinity or a negative square"
            )
        gram.mul_(self.off_diagonal)
        gram.diagonal().copy_(diagonal + _RIDGE * diagonal.mean())
        return gram

    def _merge_embedding(self, block: Block) -> Tensor:
        """Merge token rows, weighted by each model's counts of the token; unseen tokens are averaged."""
        import torch

        counts = torch.stack([block.statistics[model].double() for model in block.models])
        weights = torch.from_numpy(block.weights).to(counts)[:, None]
        weighted_counts = counts * weights
        weighted_counts += (weighted_counts.sum(0) == 0) * weights
        shares = (weighted_counts / weighted_counts.sum(0)).to(block.tensors.dtype)
        first_matrix = block.tensors[0]
        merged = first_matrix.clone()
        for share, tensor in zip(shares[1:], block.tensors[1:], strict=True):
            merged += share[:, None] * (tensor - first_matrix)
        return merged
