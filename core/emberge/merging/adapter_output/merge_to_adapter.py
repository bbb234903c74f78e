"""Merges whose result is an adapter on the base: each tensor's change as two thin factors."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from emberge.contracts import Machine
from emberge.errors import CheckpointError
from emberge.files import publish, working_in, writing
from emberge.merging.adapter_config import base_provenance
from emberge.merging.adapter_output.adapter_checks import adapter_problems, is_left_out, list_heads
from emberge.merging.adapter_output.adapter_writer import AdapterParts
from emberge.merging.adapter_output.low_rank import (
    Combination,
    LowRankProducts,
    Truncation,
    factorise,
)
from emberge.merging.compare_adapters import common_class
from emberge.merging.merge_plan import MergePlan, TensorPlan, raise_problems
from emberge.merging.merge_to_folder import header_of
from emberge.merging.planning.plan_merge import plan_merge
from emberge.merging.request import MergeInput, MergeRequest
from emberge.merging.streaming.build_jobs import findings_of, merge_jobs, warnings_of
from emberge.merging.streaming.jobs import MergeJob, TensorJob, piece_as_tensor
from emberge.merging.streaming.scheduler import Progress, SchedulerLimits, run_jobs
from emberge.merging.streaming.stream import require_free
from emberge.model_folder import Checkpoint, name_of_model
from emberge.tensor_files import HEADER, TensorReader
from emberge.tensor_names import POOLER, head_of

# Models whose layers are Conv1D, which stores [in, out].
_CONV1D = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer")
# Changes up to this share of a tensor's largest number are what averaging equal models in float32 leaves.
_ROUNDING = 2.0**-20


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
    def worst(self) -> tuple[str, float]:
        """The tensor with the largest relative error of truncation, and that error."""
        return max(self.errors.items(), key=lambda item: item[1])


def merge_to_adapter(
    request: MergeRequest,
    base: MergeInput,
    out: Path,
    *,
    truncation: Truncation | None = None,
    combination: Combination | None = None,
    machine: Machine | None = None,
    provenance: Mapping[str, Any] | None = None,
    side: Path | None = None,
    progress: Progress | None = None,
) -> AdapterReport:
    """Merge models and write the result as an adapter on `base` at `out`, by one rename.

    With `combination` the result is W₀ + Σ cᵢ (Wᵢ - W₀), and changes that are products stay products. Without
    a `truncation` their factors are concatenated (rank Σ rᵢ, exact). With a `truncation` the factors are cut
    by a decomposition that never forms the full matrix. Changes that are not low-rank products are computed
    in full, tensor by tensor, and cut. Tensors that the adapters contain whole are kept whole, and so are
    norms, biases and all other tensors that are not matrices.

    Raises:
        CheckpointError: as `merge_checkpoints`; also if a model has another base, or an adapter of the base's
            trunk cannot represent a change.
    """
    require_free(out)
    side = side or out.parent / f".{out.name}.partial"
    plan = plan_merge(dataclasses.replace(request, out_dtype=request.dtype), out=out.parent)
    truncation = truncation or Truncation()
    problems = adapter_problems(plan, base, truncation, combination)
    raise_problems(dataclasses.replace(plan, problems=(*plan.problems, *problems)))
    output = _AdapterBuilder(plan, base, combination, truncation)
    with working_in(side), TensorReader() as reader:
        whole = output.fill(reader, machine or Machine(), progress)
        header = header_of(plan, provenance or {})
        our_facts = json.loads(header[HEADER])
        our_facts |= base_provenance(output.names, output.checkpoint, output.base_name)
        header[HEADER] = json.dumps(our_facts)
        output.parts.write(side, whole, output.base_name, header)
        require_free(out)
        with writing(out, "the result"):
            publish(side, out)
    factors = output.parts.factors
    return AdapterReport(
        {module: one.rank for module, one in factors.items()},
        {f"{module}.weight": one.error for module, one in factors.items()},
        tuple(sorted(whole)),
        plan.weights,
        (*plan.warnings, *warnings_of(output.jobs), *output.warnings()),
        findings_of(output.jobs),
    )


@dataclass
class _AdapterBuilder:
    """A builder of the merged adapter, tensor by tensor."""

    plan: MergePlan
    base: MergeInput
    combination: Combination | None
    truncation: Truncation
    left: set[str] = field(default_factory=set)
    """Names of changed heads."""
    jobs: list[TensorJob] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.base.folder is not None
        self.checkpoint = Checkpoint(self.base.folder)
        self.names = self.checkpoint.names
        self.products = LowRankProducts(self.plan, self.names, self.combination, self.truncation)
        merged = [
            t for t in self.plan.tensors if t.action == "merge"
        ]  # what is copied has one source
        self.saved = {t.name for t in merged if self.products.is_saved_whole(t)}
        self.base_name = name_of_model(self.base.folder)
        self.modules = tuple(part for part in self.checkpoint.parts if part)
        kind = self.checkpoint.config.get("model_type")
        trunk = {n for n in self.names.specs if not (self.modules and n.startswith(self.modules))}
        self.trained_on = common_class(self.plan.request.inputs)
        heads = frozenset(n for n in list_heads(self.plan, self.names) if head_of(n) != POOLER)
        self.parts = AdapterParts(frozenset(trunk), self.trained_on, heads, kind in _CONV1D)
        self._pieces: dict[int, Tensor] = {}
        self._whole: dict[str, Tensor] = {}
        self._lock = threading.Lock()

    def fill(
        self, reader: TensorReader, machine: Machine, progress: Progress | None
    ) -> dict[str, Tensor]:
        """Collect all changes in the parts, and return the tensors kept whole, by name."""
        merged = [t for t in self.plan.tensors if t.action == "merge"]
        by_job = [t for t in merged if not self.products.is_product_change(t)]
        plan = dataclasses.replace(self.plan, tensors=tuple(by_job))
        self.jobs = list(merge_jobs(plan, reader))
        run_jobs(
            self.jobs,
            self._put_piece,
            limits=SchedulerLimits.of(machine),
            finished=lambda job: self._take_change(job, reader),
            progress=progress,
        )
        with torch.no_grad():
            for tensor in merged:
                if self.products.is_product_change(tensor):
                    self._take_product(tensor, reader)
        names = self.parts.whole_names()
        return {
            n: self._whole[n] if n in self._whole else self._read_base(n, reader) for n in names
        }

    def warnings(self) -> Iterator[str]:
        yield from self.trained_on.remarks
        if self.left:
            heads = ", ".join(sorted({head_of(name) for name in self.left}))
            yield f"the changes of the head {heads} are left out: an adapter here is the trunk's"

    def _put_piece(self, job: TensorJob, start: int, piece: Tensor | np.ndarray) -> None:
        numbers = piece_as_tensor(piece, job.spec)
        with self._lock:
            piece_of_job = self._pieces.get(id(job))
            if piece_of_job is None:
                piece_of_job = self._pieces[id(job)] = torch.empty(
                    job.spec.elements, dtype=numbers.dtype
                )
        piece_of_job[start : start + numbers.numel()] = numbers

    def _take_change(self, job: TensorJob, reader: TensorReader) -> None:
        assert isinstance(job, MergeJob)
        name = job.block.name
        with self._lock:
            merged = self._pieces.pop(id(job), None)
        if merged is None:
            return
        merged = merged.view(job.spec.shape)
        if is_left_out(name, self.plan, self.names, self.trained_on):
            self.left.add(name)
            return
        if name not in self.names.specs:
            self.parts.changed_names.add(name)
            self._whole[name] = merged.float()
            return
        base = self._read_base(name, reader)
        if float((merged - base).abs().max()) > _ROUNDING * float(base.abs().max()):
            self._sort_change(name, merged, base)

    def _sort_change(self, name: str, merged: Tensor, own: Tensor) -> None:
        """Factorise a tensor's change, or keep the whole tensor."""
        if self.modules and name.startswith(self.modules):
            raise CheckpointError(
                f"{name}: changed, and is a module after the trunk, which an adapter cannot hold; keep the "
                "whole model"
            )
        if self._is_matrix(name, merged):
            product = factorise(merged - own.to(merged.dtype), self.truncation)
            self.parts.factors[name.removesuffix(".weight")] = product
        else:
            self.parts.changed_names.add(name)
            self._whole[name] = merged.float()

    def _is_matrix(self, name: str, merged: Tensor) -> bool:
        has_several_columns = merged.dim() == 2 and min(merged.shape) > 1
        return has_several_columns and name.endswith(".weight") and name not in self.saved

    def _take_product(self, tensor: TensorPlan, reader: TensorReader) -> None:
        product = self.products.factors(tensor, reader)
        if product is not None and is_left_out(tensor.name, self.plan, self.names, self.trained_on):
            self.left.add(tensor.name)
        elif product is not None:
            self.parts.factors[tensor.name.removesuffix(".weight")] = product

    def _read_base(self, name: str, reader: TensorReader) -> Tensor:
        spec = self.names.specs[name]
        base = torch.empty(spec.shape)
        reader.read(spec, 0, base.view(-1))
        return base
