"""Sums of adapters' changes that stay products: factors side by side, or cut without the full matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from emberge.merging.adapter_output.factorise import Factors, Truncation
from emberge.merging.adapters.adapter_reader import WEIGHTS
from emberge.merging.adapters.apply_adapter import AdaptedSpec, LowRank
from emberge.merging.adapters.base_match import same_bytes
from emberge.merging.merge_plan import MergePlan, TensorPlan, weights_of
from emberge.tensor_files import DerivedTensor, TensorSpec
from emberge.tensor_names import Names

if TYPE_CHECKING:
    from torch import Tensor

    from emberge.tensor_files import TensorReader


Combination = Callable[[str, Mapping[str, float], float], Mapping[str, float]]
"""(tensor, weights by model, depth) to what each model's change from the base is multiplied by."""


@dataclass(frozen=True)
class Products:
    """The tensors of a merge of adapters on the base of `names` that change by sums of products."""

    plan: MergePlan
    names: Names
    combination: Combination | None
    truncation: Truncation
    _known: dict[str, bool] = field(default_factory=dict, init=False)

    @property
    def exact(self) -> bool:
        """True if nothing is cut."""
        return self.truncation == Truncation()

    def has(self, tensor: TensorPlan) -> bool:
        """Return whether every model's change of a matrix is one product, or nothing."""
        if tensor.name not in self._known:
            self._known[tensor.name] = self._has(tensor)
        return self._known[tensor.name]

    def saves(self, tensor: TensorPlan) -> bool:
        """Return whether some adapter has the tensor whole, so that a result of adapters does too."""
        return any(
            model.adapter is not None and spec is not None and _is_of(spec, model.adapter)
            for model, spec in zip(self.plan.request.inputs, tensor.sources, strict=True)
        )

    def factors(self, tensor: TensorPlan, reader: TensorReader) -> Factors | None:
        """Return the factors of the stored matrix's change; None where no model changes it."""
        import torch

        from emberge.merging.adapter_output.factorise import Factors, factorise_product

        assert self.combination is not None
        depth = self.plan.depths.get(tensor.name, 0.0)
        shares = self.combination(tensor.name, weights_of(self.plan, tensor), depth)
        b: list[Tensor] = []
        a: list[Tensor] = []
        for model, spec in zip(self.plan.request.inputs, tensor.sources, strict=True):
            for change in spec.changes if isinstance(spec, AdaptedSpec) else ():
                assert isinstance(change, LowRank)
                left, right = _read(change, reader)
                b.append(left * (change.scale * shares[model.name]))
                a.append(right)
        if not b:
            return None
        whole_b, whole_a = torch.cat(b, dim=1), torch.cat(a)
        if self.exact:
            return Factors(whole_a.float(), whole_b.float(), 0.0)
        return factorise_product(whole_b, whole_a, self.truncation)

    def _has(self, tensor: TensorPlan) -> bool:
        own = self.names.specs.get(tensor.name)
        adapters = all(model.adapter is not None for model in self.plan.request.inputs)
        if own is None or self.combination is None or not adapters or len(own.shape) != 2:
            return False
        return all(spec is not None and _is_product(spec, own) for spec in tensor.sources)


def _is_of(spec: TensorSpec, adapter: Path) -> bool:
    """Return whether a tensor is an adapter's own and nothing else: its module was saved."""
    if isinstance(spec, AdaptedSpec):
        return not spec.changes and _is_of(spec.origin, adapter)
    return spec.file.parent == adapter


def _is_product(spec: TensorSpec, own: TensorSpec) -> bool:
    """Return whether a tensor is the base's `own` with products added."""
    if not isinstance(spec, AdaptedSpec):
        return spec.file.name != WEIGHTS or _same(spec, own)
    if not spec.changes or not all(isinstance(change, LowRank) for change in spec.changes):
        return False
    # Of an adapted table of embeddings training keeps a copy, which should be the base's.
    return spec.origin.file.name != WEIGHTS or _same(spec.origin, own)


def _same(spec: TensorSpec, own: TensorSpec) -> bool:
    plain = not isinstance(spec, DerivedTensor) and not isinstance(own, DerivedTensor)
    return plain and same_bytes(spec, own)


def _read(change: LowRank, reader: TensorReader) -> tuple[Tensor, Tensor]:
    """Return the factors (B, A) of the stored matrix, float64."""
    import torch

    a, b = (torch.empty(spec.shape, dtype=torch.float64) for spec in (change.a, change.b))
    reader.read(change.a, 0, a.view(-1))
    reader.read(change.b, 0, b.view(-1))
    return (a.T, b.T) if change.transposed else (b, a)
