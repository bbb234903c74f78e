"""Merge checkpoints, or tensors in memory, by a chain of stages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from emberge.contracts.chain import Rule
from emberge.contracts.stage import Stage
from emberge.contracts.step import Machine
from emberge.files.atomic import publish, require_free
from emberge.files.disk_space import writing
from emberge.files.locks import working_in
from emberge.merging.merge_in_memory import merge_state_dicts
from emberge.merging.planning.effective_weights import EffectiveWeight
from emberge.merging.planning.merge_header import header_of
from emberge.merging.planning.plan_merge import (
    Dtype,
    MergeInput,
    MergePlan,
    MergeRequest,
    Missing,
    plan_merge,
    raise_problems,
)
from emberge.merging.planning.slices import MergeSlice, write_layers
from emberge.merging.statistics.statistics_file import (
    StatisticsFile,
    statistics_files,
    statistics_path,
)
from emberge.merging.streaming.build_jobs import Compute, merge_jobs
from emberge.merging.streaming.jobs import MergeJob, TensorJob
from emberge.merging.streaming.scheduler import Limits, Progress
from emberge.merging.streaming.stream import stream
from emberge.merging.tokens.supplied_vocabulary import SuppliedVocabulary
from emberge.merging.tokens.token_files import write_tokens
from emberge.merging.tokens.vocabulary_policy import VocabularyPolicy
from emberge.model_folder.checkpoint import Checkpoint
from emberge.model_folder.copy_template import copy_template
from emberge.tensor_files.tensor_reader import TensorReader
from emberge.tensor_files.tensor_writer import TensorWriter
from emberge.wording import join_some, parse_size

__all__ = ["MergeInput", "MergeReport", "MergeRequest", "merge_checkpoints", "merge_state_dicts"]


@dataclass(frozen=True)
class MergeReport:
    """What a merge did. `weights` are effective ones, as in MergePlan."""

    merged: tuple[str, ...]
    copied: tuple[str, ...]
    dropped: tuple[str, ...]
    renamed: Mapping[str, str]
    weights: Mapping[str, float]
    weight_sum: float
    dtype: str
    bytes: int
    warnings: tuple[str, ...] = ()
    foretold: tuple[str, ...] = ()
    """The warnings among them that the plan has already."""
    shares: Mapping[str, EffectiveWeight] = field(default_factory=dict)


def merge_checkpoints(
    inputs: Sequence[MergeInput],
    *,
    strategy: Sequence[Stage],
    out: Path,
    base: MergeInput | None = None,
    rules: Sequence[Rule] = (),
    dtype: Compute = "float32",
    out_dtype: Dtype | None = None,
    template: Path | None = None,
    tokenizer: Path | None = None,
    missing: Missing = "strict",
    statistics: Mapping[str, Path] | None = None,
    machine: Machine | None = None,
    seed: int = 0,
    max_shard_size: str | int = "5GB",
    provenance: Mapping[str, Any] | None = None,
    side: Path | None = None,
    progress: Progress | None = None,
    slices: Sequence[MergeSlice] = (),
    vocabulary: SuppliedVocabulary | None = None,
    tokens: VocabularyPolicy | None = None,
) -> MergeReport:
    """Merge model folders into a new one at `out`, complete with tokenizer, configs and modules.

    `out` appears by one rename when all is done; until then the work lies in `side` (default: a hidden
    folder beside it), from which a killed merge of the same inputs goes on. `template` (default: the
    first model) gives names, stored dtypes and everything that is not weights; `tokenizer` is a folder
    whose tokenizer is taken instead. `dtype` is what is computed in, `out_dtype` what is stored.
    `statistics` says where files are that the strategies' options name and a step made; `provenance`
    goes into the files' headers, beside what the merge says of itself there. With `slices`, which stack
    layers, there are neither `inputs` nor a `base`; the slices have them. A `vocabulary` takes the place
    of the models' own, with its tokenizer; else `tokens` say how those of different tokenizers line up.

    Raises:
        CheckpointError: for inputs that do not fit, are damaged or not finite, an occupied `out`, and a
            disk too small; nothing is left at `out`.
    """
    request = MergeRequest(
        inputs=tuple(inputs),
        strategy=tuple(strategy),
        base=base,
        rules=tuple(rules),
        out_dtype=out_dtype,
        template=template,
        tokenizer=tokenizer,
        missing=missing,
        statistics=statistics or {},
        slices=tuple(slices),
        vocabulary=vocabulary,
        tokens=tokens or VocabularyPolicy(),
    )
    require_free(out)
    side = side or out.parent / f".{out.name}.partial"
    plan = plan_merge(request, out=out.parent, part=side)
    raise_problems(plan)
    parse_size(max_shard_size)
    assert plan.template is not None
    header = header_of(plan, seed=seed, dtype=dtype, given=provenance or {})
    parts = plan.template.parts

    def writer(folder: Path) -> TensorWriter:
        specs = [tensor.out for tensor in plan.tensors]
        return TensorWriter(folder, specs, header, max_shard_size, parts)

    own_tokenizer = vocabulary.folder if vocabulary is not None else tokenizer
    complete = partial(copy_template, plan.template, dtype=plan.dtype, tokenizer=own_tokenizer)
    complete = partial(_completed, complete, plan, plan.template)
    with working_in(side), TensorReader() as reader:
        jobs = list(merge_jobs(plan, reader, dtype=dtype, seed=seed))
        measured = _measured(request)
        rows = plan.tokens.digest
        work = (repr(request.chains), dtype, seed, str(max_shard_size), header, measured, rows)
        stream(
            jobs,
            side,
            key=_key(request, work),
            limits=limits_of(machine or Machine()),
            writer=writer,
            progress=progress,
            complete=complete,
        )
        require_free(out)
        with writing(out, "the result"):
            publish(side, out)
    return report_of(plan, list(_warnings(jobs)))


def _completed(
    complete: Callable[[Path], None], plan: MergePlan, template: Checkpoint, out: Path
) -> None:
    """What stands beside the weights, with the number of layers and tokens that there are now."""
    complete(out)
    request, trunk = plan.request, out / template.trunk.relative_to(template.folder)
    write_tokens(plan.tokens, out, trunk)
    if request.slices:
        write_layers(request, trunk)
    if request.vocabulary is not None:
        request.vocabulary.write_size(trunk)


def limits_of(machine: Machine) -> Limits:
    """How a machine works on a merge: at least two threads a GPU, so that one copies while one computes."""
    gpus = [device for device in machine.devices if device != "cpu"]
    workers = max(1, machine.workers, 2 * len(gpus))
    return Limits(workers=workers, memory=machine.memory, devices=tuple(gpus) or ("cpu",))


def report_of(plan: MergePlan, warnings: Sequence[str] = ()) -> MergeReport:
    """A plan as the report of having done it, with what was noticed meanwhile."""
    return MergeReport(
        merged=tuple(plan.merged),
        copied=tuple(plan.copied),
        dropped=plan.dropped,
        renamed=plan.renamed,
        weights=plan.weights,
        weight_sum=plan.weight_sum,
        dtype=plan.dtype,
        bytes=plan.bytes,
        warnings=(*plan.warnings, *warnings),
        foretold=plan.warnings,
        shares=plan.shares,
    )


def _warnings(jobs: Sequence[TensorJob]) -> Iterator[str]:
    """What jobs have to say, once each, with the tensors it concerns."""
    said: dict[str, list[str]] = {}
    for job in jobs:
        for warning in dict.fromkeys(job.warnings) if isinstance(job, MergeJob) else ():
            said.setdefault(warning, []).append(job.spec.name)
    for warning, names in said.items():
        yield f"{join_some(names, 1)}: {warning}"


def _measured(request: MergeRequest) -> list[str]:
    """Hashes of the statistics files that a merge takes numbers from."""
    links = [link for chain in request.chains for link in chain]
    files = statistics_files(links, request.statistics)
    return [StatisticsFile(statistics_path(path)).verify().content for path in files]


def _key(request: MergeRequest, work: Any) -> str:
    """Says what is merged and how: another key, other bytes."""
    facts: list[Any] = [repr(work), [(one.count, repr(one.strategy)) for one in request.slices]]
    facts.append(request.vocabulary.key if request.vocabulary is not None else "")
    for model in request.everyone:
        own = (model.name, repr(model.weight), model.group, repr(model.options), model.first)
        facts.append(own)
        facts.append(model.fingerprint or _files_of(model))
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()


def _files_of(model: MergeInput) -> list[Any]:
    assert model.folder is not None
    folders = [folder.resolve() for folder in (model.folder, model.adapter) if folder is not None]
    files = [path for folder in folders for path in sorted(folder.rglob("*.safetensors"))]
    stats = [(p, p.stat()) for p in files]
    return [*map(str, folders), [(str(p), s.st_size, s.st_mtime_ns) for p, s in stats]]
