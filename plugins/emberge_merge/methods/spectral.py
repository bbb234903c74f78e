"""Merges of matrices as linear maps; every other tensor takes the mean of its weighted changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Block, MergeStrategy, PerTensor, Stats

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Spectral(MergeStrategy):
    """Strategy that merges whole matrices in float64; for other tensors the changes are averaged.

    Matrices with a row per token are merged in this way too, which is slow: give embeddings another
    strategy by a rule.
    """

    scale: PerTensor = PerTensor(1.0)
    """Factor on the merged change."""

    base_policy = "required"
    weight_role = "scale"

    def needs_whole(self, block: Block) -> bool:
        return True

    def merge(self, block: Block, stats: Stats) -> Tensor:
        import torch

        weights = torch.from_numpy(block.weights).to(block.deltas.device)
        deltas = block.deltas * weights.view(-1, *[1] * (block.deltas.dim() - 1))
        merged = self.merge_matrices(deltas) if deltas.dim() == 3 else deltas.mean(0)
        change: Tensor = (block.options.scale * merged).to(block.tensors.dtype)
        return block.rows.require_base() + change

    def merge_matrices(self, deltas: Tensor) -> Tensor:
        """Return the merged delta [out, in], float64, of weighted deltas [models, out, in]."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class IsoC(Spectral):
    """Flatten the sum's spectrum: U · mean(sigma) · Vᵀ (Marczak et al., 2025, arXiv:2502.04959).

    Example:
        strategy: iso_c
    """

    def merge_matrices(self, deltas: Tensor) -> Tensor:
        import torch

        u, sigma, vh = torch.linalg.svd(deltas.sum(0), full_matrices=False)
        merged: Tensor = sigma.mean() * (u @ vh)
        return merged


@dataclass(frozen=True, kw_only=True)
class TsvM(Spectral):
    """Keep each task's leading singular vectors and make them orthogonal to the other tasks'.

    Of r = min(out, in) triplets every one of N models keeps int(r / N); the joined left and right vectors
    are replaced by their polar factors. With more models than triplets the deltas are summed
    (Gargiulo et al., 2024, arXiv:2412.00081).

    Example:
        strategy: tsv_m
    """

    def merge_matrices(self, deltas: Tensor) -> Tensor:
        import torch

        keep = min(deltas.shape[1:]) // deltas.shape[0]
        if keep == 0:
            return deltas.sum(0)
        u, sigma, vh = torch.linalg.svd(deltas, full_matrices=False)
        left_vectors = torch.cat(list(u[:, :, :keep]), dim=1)
        right_vectors = torch.cat(list(vh[:, :keep]), dim=0)
        scaled = _compute_polar_factor(left_vectors) * sigma[:, :keep].reshape(-1)
        merged: Tensor = scaled @ _compute_polar_factor(right_vectors)
        return merged


@dataclass(frozen=True, kw_only=True)
class Wudi(Spectral):
    """Use the delta that differs least from each model's delta along that delta's input directions (WUDI).

    It minimises the sum of |(d - d_i) d_iᵀ|² / |d_i|² in closed form, d = (Σ d_i G_i)(Σ G_i)⁺ with G_i = d_iᵀ
    d_i / |d_i|² (Cheng et al., 2025, arXiv:2503.08099; the paper uses gradient descent).

    Example:
        strategy: wudi
    """

    def merge_matrices(self, deltas: Tensor) -> Tensor:
        import torch

        summed = deltas.new_zeros(deltas.shape[2], deltas.shape[2])
        product = torch.zeros_like(deltas[0])
        for delta in deltas:
            norm = delta.square().sum()
            if float(norm) > 0:
                gram = delta.mT @ delta / norm
                summed.add_(gram)
                product.add_(delta @ gram)
        inverse: Tensor = torch.linalg.pinv(summed, rtol=1e-10, hermitian=True)
        return product @ inverse


def _compute_polar_factor(matrix: Tensor) -> Tensor:
    """Return the nearest matrix with orthonormal rows or columns."""
    import torch

    u, _, vh = torch.linalg.svd(matrix, full_matrices=False)
    factor: Tensor = u @ vh
    return factor
