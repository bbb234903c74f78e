"""Merges whose result is an adapter on the base: each tensor's change as two thin factors."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from emberge import CheckpointError, Workspace
from emberge.merging import (
    MergeInput,
    MergePlan,
    MergeRequest,
    TensorPlan,
    build_header,
    describe_base,
    merge_tensors,
    plan_merge,
)
from emberge.model_folder import Checkpoint, find_model_name
from emberge.tensor_files import PROVENANCE_KEY, TensorReader
from emberge.tensor_names import find_head
from torch import Tensor

from emberge_merge.adapters.adapter_checks import find_adapter_problems, is_left_out
from emberge_merge.adapters.adapter_writer import AdapterParts
from emberge_merge.adapters.low_rank import Combination, Truncation, factorise
from emberge_merge.adapters.low_rank_products import LowRankProducts

# Models whose layers are Conv1D, which stores [in, out].
_CONV1D_TYPES = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer")
# Changes up to this share of a tensor's largest number are what averaging equal models in float32 leaves.
_LARGEST_ROUNDING = 2.0**-20


@dataclass(frozen=True)
class AdapterReport:
    """A report on a merged adapter: rank by module and error by tensor of the backbone.

    `errors` are relative Frobenius errors of the changes that were factorised; `whole` are tensors that the
    adapter contains in full; `weights` are the models' effective weights, as in MergePlan; `findings` are as
    in MergeReport.
    """

    ranks: Mapping[str, int]
    errors: Mapping[str, float]
    whole: tuple[str, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    findings: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def worst_error(self) -> float:
        """The largest relative error of truncation."""
        return max(self.errors.values())


def merge_to_adapter(
    request: MergeRequest,
    base: MergeInput,
    workspace: Workspace,
    truncation: Truncation,
    combination: Combination | None = None,
) -> AdapterReport:
    """Merge models and write the result into the step's folder, as an adapter on `base`.

    With `combination` the result is W₀ + Σ cᵢ (Wᵢ - W₀), and changes that are products stay products. If
    nothing is truncated, their factors are concatenated (rank Σ rᵢ, exact). Otherwise the factors are cut
    by a decomposition that never forms the full matrix. Changes that are not low-rank products are computed
    in full, tensor by tensor, and cut. Tensors that the adapters contain whole are kept whole, and so are
    norms, biases and all other tensors that are not matrices.

    Raises:
        CheckpointError: as `merge_checkpoints`; also if a model has another base, or an adapter of the base's
            trunk cannot represent a change.
    """
    plan = plan_merge(replace(request, out_dtype=request.dtype), needs_weights=True)
    plan.raise_problems(find_adapter_problems(plan, base, truncation, combination))
    assert base.folder is not None
    builder = _AdapterBuilder(plan, Checkpoint(base.folder), combination, truncation)
    with TensorReader() as reader:
        whole = builder.fill(reader, workspace)
        header = build_header(plan, {PROVENANCE_KEY: workspace.provenance})
        facts = {**json.loads(header[PROVENANCE_KEY]), **describe_base(builder.base)}
        header[PROVENANCE_KEY] = json.dumps(facts)
        builder.parts.write(workspace.folder, whole, find_model_name(base.folder), header)
    factors = dict(sorted(builder.parts.factors.items()))
    return AdapterReport(
        {module: one.rank for module, one in factors.items()},
        {f"{module}.weight": one.error for module, one in factors.items()},
        tuple(sorted(whole)),
        plan.weights,
        (*plan.warnings, *builder.warnings),
        builder.findings,
    )


@dataclass
class _AdapterBuilder:
    """A builder of the merged adapter, tensor by tensor."""

    plan: MergePlan
    base: Checkpoint
    combination: Combination | None
    truncation: Truncation
    left_heads: set[str] = field(default_factory=set)
    """Names of changed heads."""
    warnings: list[str] = field(default_factory=list)
    findings: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = self.base.tensor_names
        self.products = LowRankProducts(self.plan, self.names, self.combination, self.truncation)
        # Copies have one source.
        self.merged_plans = [t for t in self.plan.tensors if t.action == "merge"]
        self.saved_names = {t.name for t in self.merged_plans if self.products.is_saved_whole(t)}
        self.modules = tuple(filter(None, self.base.folder_by_prefix))
        trunk = {n for n in self.names.specs if not (self.modules and n.startswith(self.modules))}
        is_transposed = self.base.config.get("model_type") in _CONV1D_TYPES
        self.parts = AdapterParts(frozenset(trunk), is_transposed)
        self._whole: dict[str, Tensor] = {}
        self._lock = threading.Lock()

    def fill(self, reader: TensorReader, workspace: Workspace) -> dict[str, Tensor]:
        """Collect all changes in the parts, and return the tensors kept whole, by name."""
        products = {t.name for t in self.merged_plans if self.products.is_product_change(t)}
        others = tuple(t for t in self.merged_plans if t.name not in products)
        report = merge_tensors(
            replace(self.plan, tensors=others),
            reader,
            lambda name, merged: self._take_merged(name, merged, reader),
            machine=workspace.machine,
            progress=lambda done, total, name: workspace.progress(done, total, "bytes", name),
        )
        with torch.no_grad():
            for tensor in self.merged_plans:
                if tensor.name in products:
                    self._take_product(tensor, reader)
        self.warnings += report.warnings
        if self.left_heads:
            heads = ", ".join(sorted({find_head(name) for name in self.left_heads}))
            self.warnings.append(
                f"the changes of the head {heads} are left out: an adapter here is the trunk's"
            )
        self.findings = report.findings
        names = self.parts.list_whole_names()
        return {
            n: self._whole[n] if n in self._whole else self._read_base(n, reader) for n in names
        }

    def _take_merged(self, name: str, merged: Tensor, reader: TensorReader) -> None:
        """Put a merged tensor into the parts, as factors of its change or whole; threads call this."""
        if is_left_out(name, self.plan, self.names):
            self.left_heads.add(name)
            return
        base = self._read_base(name, reader)
        if float((merged - base).abs().max()) <= _LARGEST_ROUNDING * float(base.abs().max()):
            return
        if self.modules and name.startswith(self.modules):
            raise CheckpointError(
                f"{name}: changed, and is a module after the trunk, which an adapter cannot hold; keep the "
                "whole model"
            )
        is_matrix = merged.dim() == 2 and min(merged.shape) > 1 and name.endswith(".weight")
        if not is_matrix or name in self.saved_names:
            with self._lock:
                self.parts.changed_names.add(name)
                self._whole[name] = merged.float()
            return
        product = factorise(merged - base.to(merged.dtype), self.truncation)
        self.parts.factors[name.removesuffix(".weight")] = product

    def _take_product(self, tensor: TensorPlan, reader: TensorReader) -> None:
        product = self.products.compute_factors(tensor, reader)
        if product is not None and is_left_out(tensor.name, self.plan, self.names):
            self.left_heads.add(tensor.name)
        elif product is not None:
            self.parts.factors[tensor.name.removesuffix(".weight")] = product

    def _read_base(self, name: str, reader: TensorReader) -> Tensor:
        spec = self.names.specs[name]
        base = torch.empty(spec.shape)
        reader.read(spec, 0, base.view(-1))
        return base
