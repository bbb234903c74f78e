"""Merged tensors whose change is a sum of the adapters' low-rank products; loads no torch by itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from emberge.merging import AdaptedSpec, LowRank, MergePlan, TensorPlan
from emberge.model_folder import ADAPTER_WEIGHTS
from emberge.tensor_files import DerivedTensor, TensorSpec
from emberge.tensor_names import TensorNames

from emberge_merge.adapters.low_rank import (
    Combination,
    LowRankFactors,
    Truncation,
    factorise_product,
)

if TYPE_CHECKING:
    from emberge.tensor_files import TensorReader
    from torch import Tensor


@dataclass(frozen=True)
class LowRankProducts:
    """The tensors of a merge of adapters whose change is a sum of low-rank products.

    `base` has the tensors of the base; `combination` is None if the merge is no sum of changes.
    """

    plan: MergePlan
    base: TensorNames
    combination: Combination | None
    truncation: Truncation

    def is_product_change(self, tensor: TensorPlan) -> bool:
        """Return whether every model either changes the matrix by products or does not change it."""
        base_spec = self.base.specs.get(tensor.name)
        if self.combination is None or base_spec is None or len(base_spec.shape) != 2:
            return False
        models = zip(self.plan.request.inputs, tensor.sources, strict=True)
        return all(
            model.adapter is not None
            and spec is not None
            and _find_products(spec, base_spec) is not None
            for model, spec in models
        )

    def is_saved_whole(self, tensor: TensorPlan) -> bool:
        """Return whether any adapter stores the whole tensor, which the merged adapter must then do, too."""
        models = zip(self.plan.request.inputs, tensor.sources, strict=True)
        return any(
            model.adapter is not None and spec is not None and _is_saved_whole(spec, model.adapter)
            for model, spec in models
        )

    def compute_factors(self, tensor: TensorPlan, reader: TensorReader) -> LowRankFactors | None:
        """Return the factors of the stored matrix's change; None if no model changes it."""
        import torch

        assert self.combination is not None
        base_spec, depth = self.base.specs[tensor.name], self.plan.depths.get(tensor.name, 0.0)
        shares = self.combination(tensor.result.name, self.plan.map_weights(tensor), depth)
        left: list[Tensor] = []
        right: list[Tensor] = []
        for model, spec in zip(self.plan.request.inputs, tensor.sources, strict=True):
            assert spec is not None
            for product in _find_products(spec, base_spec) or ():
                a, b = (_read_matrix(one, reader) for one in (product.a, product.b))
                b, a = (a.T, b.T) if product.transposed else (b, a)
                left.append(b * (product.scale * shares[model.name]))
                right.append(a)
        if not left:
            return None
        whole_b, whole_a = torch.cat(left, dim=1), torch.cat(right)
        if self.truncation.rank is None:
            return LowRankFactors(whole_a.float(), whole_b.float(), 0.0)
        return factorise_product(whole_b, whole_a, self.truncation)


def _read_matrix(spec: TensorSpec, reader: TensorReader) -> Tensor:
    import torch

    matrix = torch.empty(spec.shape, dtype=torch.float64)
    reader.read(spec, 0, matrix.view(-1))
    return matrix


def _find_products(spec: TensorSpec, base: TensorSpec) -> Sequence[LowRank] | None:
    """Return the low-rank products that are added to `base` to give `spec`; None if it is no such sum."""
    origin = spec.origin if isinstance(spec, AdaptedSpec) else spec
    products = [one for one in getattr(spec, "changes", ()) if isinstance(one, LowRank)]
    if isinstance(spec, AdaptedSpec) and (not products or len(products) < len(spec.changes)):
        return None
    # Of an adapted table of embeddings training keeps a copy, which should be the base's.
    is_base = origin.file.name != ADAPTER_WEIGHTS or _have_equal_bytes(origin, base)
    return products if is_base else None


def _is_saved_whole(spec: TensorSpec, adapter: Path) -> bool:
    """Return whether a tensor of an adapted model is stored whole in the adapter's folder."""
    if isinstance(spec, AdaptedSpec):
        return not spec.changes and _is_saved_whole(spec.origin, adapter)
    return spec.file.parent == adapter


def _have_equal_bytes(first: TensorSpec, second: TensorSpec) -> bool:
    """Return whether two tensors are equal byte for byte; False if one of them is computed."""
    is_computed = isinstance(first, DerivedTensor) or isinstance(second, DerivedTensor)
    if is_computed or (first.shape, first.dtype) != (second.shape, second.dtype):
        return False
    with first.file.open("rb") as a, second.file.open("rb") as b:
        for start in range(0, first.nbytes, 1 << 20):
            length = min(1 << 20, first.nbytes - start)
            pieces = [
                os.pread(file.fileno(), length, spec.offset + start)
                for file, spec in ((a, first), (b, second))
            ]
            if pieces[0] != pieces[1]:
                return False
    return True
