"""Building of a plan's jobs, and summaries of the remarks of finished jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from emberge.contracts import Block, Machine
from emberge.merging.chain import Chain, Resolver
from emberge.merging.merge_plan import MergePlan, TensorPlan
from emberge.merging.streaming.jobs import CopyJob, MergeJob, TensorJob, convert_piece
from emberge.merging.streaming.scheduler import Progress, SchedulerLimits, run_jobs
from emberge.numerics import DeltaProgram, NoRows, kernels_allowed, load_kernels
from emberge.tensor_files import FileSource, TensorReader
from emberge.wording import join_some

if TYPE_CHECKING:
    from torch import Tensor

    from emberge.merging.row_entries import MergeStatistics
    from emberge.merging.tokens.token_rows import PartialRows


def merge_jobs(plan: MergePlan, reader: TensorReader) -> Iterator[TensorJob]:
    """Yield the jobs of a plan without problems, in the order of its tensors."""
    statistics, resolve = None, plan.build_resolver()
    if plan.request.uses_statistics:
        from emberge.merging.row_entries import MergeStatistics

        statistics = MergeStatistics(plan.request)
    compiled = load_kernels() if kernels_allowed() else None
    for tensor in plan.tensors:
        yield (
            replace(_build_merge_job(plan, tensor, reader, resolve, statistics), kernels=compiled)
            if tensor.action == "merge"
            else _build_copy_job(plan, tensor, reader)
        )


def _build_merge_job(
    plan: MergePlan,
    tensor: TensorPlan,
    reader: TensorReader,
    resolve: Resolver,
    statistics: MergeStatistics | None,
) -> MergeJob:
    request = plan.request
    number = request.find_chain(tensor.name)
    links = request.chains[number]
    present = [(m, s) for m, s in zip(request.inputs, tensor.sources, strict=True) if s is not None]
    models = [model for model, _ in present]
    base = None
    if tensor.base is not None and any(link.base_policy != "forbidden" for link in links):
        base = FileSource(request.base.name if request.base else "", tensor.base, reader)
    shape, layer, weights = tensor.out.shape, plan.layers[tensor.name], plan.map_weights(tensor)
    entries = None if statistics is None else statistics.of(number, tensor, layer, reader)
    block = Block(
        name=tensor.name,
        shape=shape,
        layer=layer,
        models=tuple(model.name for model in models),
        groups=tuple(model.group for model in models),
        rows=DeltaProgram(NoRows(len(models), shape, request.dtype, base is not None)),
        weights=np.array([weights[model.name] for model in models], np.float64),
        statistics={} if entries is None else entries,
        seed=request.seed,
        fingerprints=tuple(model.fingerprint or model.name for model in models),
    )
    return MergeJob(
        tensor.out,
        [FileSource(model.name, source, reader) for model, source in present],
        base,
        Chain(links, resolve),
        block,
        number,
        partial_rows=_find_owned_rows(tensor, block) if plan.token_plan is not None else None,
        statistics=entries,
    )


def _find_owned_rows(tensor: TensorPlan, block: Block) -> PartialRows | None:
    """Return the rows of tokens that some models lack; None if there are none."""
    from emberge.merging.tokens.token_rows import find_partial_rows

    specs = [spec for spec in tensor.sources if spec is not None]
    base = tensor.base if block.has_base else None
    return find_partial_rows(specs, base, block.weights.tolist())


def _build_copy_job(plan: MergePlan, tensor: TensorPlan, reader: TensorReader) -> CopyJob:
    assert tensor.origin is not None
    names = [m.name for m in plan.request.inputs]
    equal_sources = [
        FileSource(name, spec, reader)
        for name, spec in zip(names, tensor.sources, strict=bool(tensor.sources))
        if spec is not None and spec.file != tensor.origin.file
    ]
    return CopyJob(tensor.out, FileSource("the template", tensor.origin, reader), equal_sources)


def merge_tensors(
    plan: MergePlan,
    reader: TensorReader,
    take: Callable[[str, Tensor], None],
    *,
    machine: Machine,
    progress: Progress | None = None,
) -> tuple[list[str], Mapping[str, Mapping[str, float]]]:
    """Merge a plan's tensors in memory, call `take` with the name and numbers of each, and return the rest.

    Threads call `take` when a tensor is done, in any order. The rest are the strategies' warnings and
    findings, as in MergeReport.
    """
    import torch

    jobs = list(merge_jobs(plan, reader))
    unfinished: dict[int, Tensor] = {}
    lock = threading.Lock()

    def put(job: TensorJob, start: int, piece: Tensor | np.ndarray) -> None:
        numbers = convert_piece(piece, job.spec)
        with lock:
            whole = unfinished.get(id(job))
            if whole is None:
                whole = unfinished[id(job)] = torch.empty(job.spec.shape, dtype=numbers.dtype)
        whole.view(-1)[start : start + numbers.numel()] = numbers

    def finish(job: TensorJob) -> None:
        assert isinstance(job, MergeJob)
        take(job.block.name, unfinished.pop(id(job)))

    limits = SchedulerLimits.of(machine)
    run_jobs(jobs, put, limits=limits, finished=finish, progress=progress)
    return list(collect_warnings(jobs)), collect_findings(jobs)


def collect_warnings(jobs: Sequence[TensorJob]) -> Iterator[str]:
    """Yield each distinct warning of the jobs once, with its tensors."""
    tensors: dict[str, list[str]] = {}
    for job in jobs:
        for warning in dict.fromkeys(job.remarks.get("warnings", ())):
            tensors.setdefault(warning, []).append(job.spec.name)
    for warning, names in tensors.items():
        yield f"{join_some(names, 1)}: {warning}"


def collect_findings(jobs: Sequence[TensorJob]) -> dict[str, Mapping[str, float]]:
    """Return the findings of the jobs' strategies: layer to label to the mean over elements.

    A layer's mean is over its tensors that have the label; if their numbers are equal, the mean is exactly
    this number.
    """
    means: dict[str, dict[str, float]] = {}
    elements: dict[tuple[str, str], int] = {}
    for job in jobs:
        if not isinstance(job, MergeJob):
            continue
        of_layer = means.setdefault(job.block.layer, {})
        for label, number in job.remarks.get("findings", {}).items():
            mean = of_layer.setdefault(label, number)
            key = job.block.layer, label
            elements[key] = elements.get(key, 0) + job.spec.elements
            of_layer[label] = mean + (number - mean) * job.spec.elements / (elements[key] or 1)
    return {layer: found for layer, found in means.items() if found}
