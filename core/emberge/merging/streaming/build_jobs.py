"""A plan's tensors as jobs for the runner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import torch

from emberge.contracts.block import Block
from emberge.contracts.chain import Chain
from emberge.merging.planning.match_tensors import TensorPlan
from emberge.merging.planning.plan_merge import MergePlan, resolver, weights_of
from emberge.merging.statistics.row_entries import MergeStatistics
from emberge.merging.streaming.jobs import CopyJob, FileSource, MergeJob, TensorJob
from emberge.merging.tokens.token_rows import owned_rows
from emberge.model_folder.tensor_names import layer_of
from emberge.tensor_files.derived_tensor import DerivedTensor
from emberge.tensor_files.tensor_reader import TensorReader

__all__ = ["Compute", "empty_block", "merge_jobs"]

# The stages compute in the dtype of the blocks; output dtypes are free.
Compute = Literal["float32", "float64"]


def merge_jobs(
    plan: MergePlan, reader: TensorReader, *, dtype: Compute = "float32", seed: int = 0
) -> Iterator[TensorJob]:
    """The jobs of a plan without problems."""
    for number, one in enumerate(plan.plans):
        for job in merge_jobs(one, reader, dtype=dtype, seed=seed):
            if isinstance(job, MergeJob):
                # What is measured together stays within a slice, as slices have other models.
                yield replace(job, chain_id=job.chain_id + number * len(plan.request.chains))
            else:
                yield job
    if plan.plans:
        return
    request = plan.request
    known = MergeStatistics(request)
    for tensor in plan.tensors:
        yield (
            _merge_job(plan, tensor, reader, known, dtype, seed)
            if tensor.action == "merge"
            else _copy_job(plan, tensor, reader)
        )


def _merge_job(
    plan: MergePlan,
    tensor: TensorPlan,
    reader: TensorReader,
    known: MergeStatistics,
    dtype: str,
    seed: int,
) -> MergeJob:
    request = plan.request
    number = request.chain_of(tensor.name)
    links = request.chains[number]
    layer, weights = plan.layers[tensor.name], weights_of(plan, tensor)
    present = [(m, s) for m, s in zip(request.inputs, tensor.sources, strict=True) if s is not None]
    padding = _padding(tensor, reader)
    sources = [FileSource(m.name, s, reader, padding) for m, s in present]
    uses_base = any(link.base_policy != "forbidden" for link in links)
    base = None
    if uses_base and tensor.base is not None and request.base is not None:
        base = FileSource(request.base.name, tensor.base, reader, padding)
    block = empty_block(
        tensor.name,
        tensor.out.shape,
        models=[m.name for m, _ in present],
        weights=[weights[m.name] for m, _ in present],
        dtype=dtype,
        based=base is not None,
    ).replace(
        layer=layer,
        statistics=known.of(number, tensor, layer, lambda m, spec: FileSource(m, spec, reader)),
        groups=tuple(m.group for m, _ in present),
        seed=seed,
        fingerprints=tuple(m.fingerprint or m.name for m, _ in present),
    )
    coarse = base is not None and all(
        s.dtype == "bfloat16" and not isinstance(s, DerivedTensor)
        for s in (*tensor.sources, tensor.base)
        if s is not None
    )
    chain = Chain(links, resolver(plan))
    owned = owned_rows(
        [s for _, s in present], tensor.base if base else None, block.weights.tolist()
    )
    return MergeJob(tensor.out, sources, base, chain, block, number, coarse, owned)


def empty_block(
    name: str,
    shape: tuple[int, ...],
    *,
    models: Sequence[str],
    weights: Sequence[float],
    dtype: str,
    based: bool,
) -> Block:
    """A block that says all of a tensor and holds none of it; `based` says whether there is a base."""
    rest = shape[1:] if len(shape) > 1 else ()
    rows = torch.empty((len(models), 0, *rest), dtype=getattr(torch, dtype))
    return Block(
        name=name,
        shape=shape,
        layer=layer_of(name),
        models=tuple(models),
        groups=("",) * len(models),
        tensors=rows,
        base=rows.new_empty((0, *rest)) if based else None,
        weights=torch.tensor(weights, dtype=torch.float64),
    )


def _padding(tensor: TensorPlan, reader: TensorReader) -> FileSource | None:
    """Where the rows come from that a model with a less padded vocabulary lacks: a model that has them."""
    if not tensor.padded:
        return None
    longest = next(
        (s for s in tensor.sources if s is not None and s.shape == tensor.out.shape), None
    )
    return FileSource("the template", longest, reader) if longest else None


def _copy_job(plan: MergePlan, tensor: TensorPlan, reader: TensorReader) -> CopyJob:
    assert tensor.origin is not None
    names = [m.name for m in plan.request.inputs]
    same = [
        FileSource(name, spec, reader)
        for name, spec in zip(names, tensor.sources, strict=bool(tensor.sources))
        if spec is not None and spec.file != tensor.origin.file
    ]
    return CopyJob(tensor.out, FileSource("the template", tensor.origin, reader), same)
