"""Running of a merge's plan: its jobs, which write a model folder or fill tensors in memory."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from emberge.contracts import Block, Machine, walk_stages
from emberge.errors import CheckpointError
from emberge.merging.chain import Chain, Resolver
from emberge.merging.merge_plan import MergePlan, TensorPlan
from emberge.merging.merge_planning import use_plan
from emberge.merging.request import MergeInput, MergeRequest
from emberge.merging.streaming.jobs import CopyJob, MergeJob, TensorJob, convert_piece
from emberge.merging.streaming.scheduler import Progress, SchedulerLimits, run_jobs
from emberge.merging.streaming.stream import build_checkpoint
from emberge.numerics import DeltaProgram, KernelLibrary, NoRows, allows_kernels, load_kernels
from emberge.tensor_files import (
    PROVENANCE_KEY,
    FetchedFile,
    FileSource,
    TensorReader,
    build_header_texts,
    read_versions,
)
from emberge.wording import join_some

if TYPE_CHECKING:
    from torch import Tensor

    from emberge.merging.merge_statistics import MergeStatistics


@dataclass(frozen=True)
class MergeReport:
    """Report of a merge: its plan, and what only the work shows.

    `warnings` are those that are not in the plan. `findings` are numbers that strategies computed, such as
    weights, by layer and label: means over the layer's elements. `fetched` are the files that were read from
    servers.
    """

    plan: MergePlan
    warnings: tuple[str, ...] = ()
    findings: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    fetched: tuple[FetchedFile, ...] = ()


def merge_checkpoints(
    request: MergeRequest,
    out: Path,
    *,
    plan: MergePlan | None = None,
    machine: Machine | None = None,
    provenance: Mapping[str, Any] | None = None,
    side_folder: Path | None = None,
    progress: Progress | None = None,
) -> MergeReport:
    """Merge model folders into a new one at `out`, complete with tokenizer, configs and modules.

    `out` appears by one rename; until then the work is done in `side_folder` (default: a hidden folder next
    to `out`), from which a killed merge of the same request continues. A `plan` that was made before is used
    if nothing has changed since. `provenance` is added to the merge's facts in the files' headers.

    Raises:
        CheckpointError: if inputs do not fit each other, are damaged or not finite, `out` is occupied, or the
            disk is too small; nothing is left at `out`.
    """
    plan = use_plan(plan, request)
    plan.raise_problems()
    assert plan.template is not None
    header = build_header(plan, provenance or {})
    template, fetched = plan.template, list[FetchedFile]()
    with TensorReader() as reader:

        def complete_folder(folder: Path) -> None:
            nonlocal fetched
            try:
                fetched = reader.verify()
            except CheckpointError:
                shutil.rmtree(folder)  # what a server sent is not what it describes
                raise
            plan.joined_facts.write(folder, template)
            if plan.token_plan is not None:
                plan.token_plan.write(folder, folder / template.trunk.relative_to(template.folder))

        jobs = list(merge_jobs(plan, reader))
        build_checkpoint(
            jobs,
            out,
            template=template,
            key=_hash_request(plan, header),
            provenance=header,
            max_shard_size=request.max_shard_size,
            tokenizer=request.tokenizer,
            machine=machine,
            side_folder=side_folder,
            progress=progress,
            complete=complete_folder,
        )
    return MergeReport(
        plan, tuple(_collect_warnings(jobs)), _average_findings_by_layer(jobs), tuple(fetched)
    )


def merge_tensors(
    plan: MergePlan,
    reader: TensorReader,
    take: Callable[[str, Tensor], None],
    *,
    machine: Machine,
    progress: Progress | None = None,
) -> MergeReport:
    """Merge a plan's tensors in memory, and call `take` with the name and numbers of each.

    Threads call `take` when a tensor is done, in any order.
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
    return MergeReport(plan, tuple(_collect_warnings(jobs)), _average_findings_by_layer(jobs))


def _hash_request(plan: MergePlan, header: Mapping[str, str]) -> str:
    """Return a hash of everything that decides the bytes of a merge."""
    request, statistics_hashes = plan.request, []
    if request.uses_statistics:
        from emberge.merging.merge_statistics import open_statistics

        stages = [stage for chain in request.chains for stage in walk_stages(chain)]
        files = open_statistics(stages, request.statistics)
        statistics_hashes = [file.verify() for file in files]
    facts: list[Any] = [
        repr(request.chains),
        request.dtype,
        request.seed,
        str(request.max_shard_size),
        header,
        statistics_hashes,
        plan.token_plan.digest if plan.token_plan is not None else "",
    ]
    for model in request.all_inputs:
        settings = (repr(model.weight), model.group, repr(model.options), model.part)
        facts += [(model.name, *settings), model.identify_content()]
    if request.template is not None:
        facts.append(MergeInput("", request.template).identify_content())
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()


def build_header(plan: MergePlan, provenance: Mapping[str, Any]) -> dict[str, str]:
    """Build the metadata of a merge's weight files: models, weights, content hashes, method, seed, versions.

    Entries of `provenance` replace these, and values that are not text become JSON; a mapping under "emberge"
    is merged with emberge's own. The metadata does not depend on the paths of the models.
    """
    request = plan.request
    facts_by_model: dict[str, dict[str, Any]] = {}
    for model in request.all_inputs:
        model_facts = {
            "weight": plan.weights.get(model.name),
            "content": model.fingerprint or None,
            "options": model.plain_options or None,
        }
        facts_by_model[model.name] = {k: v for k, v in model_facts.items() if v is not None}
    facts: dict[str, Any] = {
        "strategy": [link.plain() for link in request.strategy],
        "models": {model.name: facts_by_model[model.name] for model in request.inputs},
        "seed": request.seed,
        "dtype": request.dtype,
        "versions": read_versions(),
    }
    if request.rules:
        facts["rules"] = {
            rule.filter: [link.plain() for link in rule.strategy] for rule in request.rules
        }
    if request.base is not None:
        facts["base"] = {"name": request.base.name, **facts_by_model[request.base.name]}
    our_facts = provenance.get(PROVENANCE_KEY)
    facts |= our_facts if isinstance(our_facts, Mapping) else {}
    return build_header_texts({**provenance, PROVENANCE_KEY: facts})


def merge_jobs(plan: MergePlan, reader: TensorReader) -> Iterator[TensorJob]:
    """Yield the jobs of a plan without problems, in the order of its tensors."""
    request, statistics = plan.request, None
    if request.uses_statistics:
        from emberge.merging.merge_statistics import MergeStatistics

        statistics = MergeStatistics(request)
    resolver = Resolver(
        {model.name: model.options for model in request.inputs if model.options},
        plan.depths,
        {tensor.name: tensor.result.name for tensor in plan.tensors},
    )
    chains = [Chain(links, resolver) for links in request.chains]
    kernels = load_kernels() if allows_kernels() else None
    for tensor in plan.tensors:
        if tensor.action == "copy":
            yield _build_copy_job(plan, tensor, reader)
        else:
            yield _build_merge_job(plan, tensor, reader, chains, statistics, kernels)


def _build_merge_job(
    plan: MergePlan,
    tensor: TensorPlan,
    reader: TensorReader,
    chains: Sequence[Chain],
    statistics: MergeStatistics | None,
    kernels: KernelLibrary | None,
) -> MergeJob:
    """Build the job that merges a tensor by its chain from the models that have it."""
    request, number = plan.request, plan.request.find_chain_number(tensor.result.name)
    present = [(m, s) for m, s in zip(request.inputs, tensor.sources, strict=True) if s is not None]
    base = None
    if tensor.base is not None and any(
        link.base_policy != "forbidden" for link in chains[number].links
    ):
        base = FileSource(request.base.name if request.base else "", tensor.base, reader)
    block = _build_empty_block(plan, tensor, [model for model, _ in present], base is not None)
    partial_rows = entries = None
    if plan.token_plan is not None:
        from emberge.merging.tokens.token_rows import find_partial_rows

        specs = [source for _, source in present]
        base_spec = tensor.base if base is not None else None
        partial_rows = find_partial_rows(specs, base_spec, block.weights.tolist())
    if statistics is not None:
        entries = statistics.of(number, tensor, block.layer, reader)
        block = block.replace(statistics=entries)
    return MergeJob(
        tensor.result,
        [FileSource(model.name, source, reader) for model, source in present],
        base,
        chains[number],
        block,
        number,
        partial_rows=partial_rows,
        statistics=entries,
        kernels=kernels,
    )


def _build_empty_block(
    plan: MergePlan, tensor: TensorPlan, models: Sequence[MergeInput], has_base: bool
) -> Block:
    """Build the block of a tensor without its rows."""
    request, shape, weights = plan.request, tensor.result.shape, plan.map_weights(tensor)
    return Block(
        name=tensor.name,
        shape=shape,
        layer=plan.layers[tensor.name],
        models=tuple(model.name for model in models),
        groups=tuple(model.group for model in models),
        rows=DeltaProgram(NoRows(len(models), shape, request.dtype, has_base)),
        weights=np.array([weights[model.name] for model in models], np.float64),
        seed=request.seed,
        fingerprints=tuple(model.fingerprint or model.name for model in models),
    )


def _build_copy_job(plan: MergePlan, tensor: TensorPlan, reader: TensorReader) -> CopyJob:
    """Build the job that copies a tensor, and compares its bytes with those of models in other files."""
    assert tensor.origin is not None
    names = [m.name for m in plan.request.inputs]
    equal_sources = [
        FileSource(name, spec, reader)
        for name, spec in zip(names, tensor.sources, strict=bool(tensor.sources))
        if spec is not None and spec.file != tensor.origin.file
    ]
    return CopyJob(tensor.result, FileSource("the template", tensor.origin, reader), equal_sources)


def _collect_warnings(jobs: Sequence[TensorJob]) -> Iterator[str]:
    """Yield each distinct warning of the jobs once, with its tensors."""
    tensors: dict[str, list[str]] = {}
    for job in jobs:
        for warning in dict.fromkeys(job.remarks.get("warnings", ())):
            tensors.setdefault(warning, []).append(job.spec.name)
    for warning, names in tensors.items():
        yield f"{join_some(names, 1)}: {warning}"


def _average_findings_by_layer(jobs: Sequence[TensorJob]) -> dict[str, dict[str, float]]:
    """Return the findings of the jobs' strategies: layer to label to the mean over elements.

    A layer's mean is over its tensors that have the label; if their numbers are equal, the mean is exactly
    this number.
    """
    means: dict[str, dict[str, float]] = {}
    elements: dict[tuple[str, str], int] = {}
    for job in jobs:
        if not isinstance(job, MergeJob):
            continue
        for label, number in job.remarks.get("findings", {}).items():
            layer_means = means.setdefault(job.block.layer, {})
            mean = layer_means.setdefault(label, number)
            key = job.block.layer, label
            elements[key] = elements.get(key, 0) + job.spec.elements
            layer_means[label] = mean + (number - mean) * job.spec.elements / (elements[key] or 1)
    return means
