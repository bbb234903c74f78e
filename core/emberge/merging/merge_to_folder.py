"""Merging of checkpoints by a chain of stages."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from emberge.contracts import Machine, walk_stages
from emberge.errors import CheckpointError
from emberge.merging.merge_plan import MergePlan
from emberge.merging.merge_planning import use_plan
from emberge.merging.request import MergeInput, MergeRequest
from emberge.merging.streaming.build_jobs import collect_findings, collect_warnings, merge_jobs
from emberge.merging.streaming.scheduler import Progress
from emberge.merging.streaming.stream import build_checkpoint, require_free
from emberge.tensor_files import (
    HEADER,
    FetchedFile,
    TensorReader,
    build_header_texts,
    read_versions,
)


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
    side: Path | None = None,
    progress: Progress | None = None,
) -> MergeReport:
    """Merge model folders into a new one at `out`, complete with tokenizer, configs and modules.

    `out` appears by one rename; until then the work is done in `side` (default: a hidden folder next to
    `out`), from which a killed merge of the same request continues. A `plan` that was made before is used if
    nothing has changed since. `provenance` is added to the merge's facts in the files' headers.

    Raises:
        CheckpointError: if inputs do not fit each other, are damaged or not finite, `out` is occupied, or the
            disk is too small; nothing is left at `out`.
    """
    require_free(out)
    side = side or out.parent / f".{out.name}.partial"
    plan = use_plan(plan, request)
    plan.raise_problems()
    assert plan.template is not None
    header = build_header(plan, provenance or {})
    fetched: list[FetchedFile] = []
    with TensorReader() as reader:
        jobs = list(merge_jobs(plan, reader))
        build_checkpoint(
            jobs,
            out,
            template=plan.template,
            key=_hash_request(plan, header),
            provenance=header,
            max_shard_size=request.max_shard_size,
            tokenizer=request.tokenizer,
            machine=machine,
            side=side,
            progress=progress,
            complete=partial(_finish_folder, plan, reader, fetched),
        )
    return MergeReport(plan, tuple(collect_warnings(jobs)), collect_findings(jobs), tuple(fetched))


def _finish_folder(
    plan: MergePlan, reader: TensorReader, fetched: list[FetchedFile], out: Path
) -> None:
    """Write what other members state, the number of tokens, and new tokens into the result's files.

    Tensors from servers are compared with the servers' hashes; if one does not agree, the folder is removed.
    """
    try:
        fetched += reader.verify()
    except CheckpointError:
        shutil.rmtree(out)
        raise
    template = plan.template
    assert template is not None
    plan.stated.write(out, template)
    if plan.token_plan is not None:
        plan.token_plan.write(out, out / template.trunk.relative_to(template.folder))


def _hash_request(plan: MergePlan, header: Mapping[str, str]) -> str:
    """Return a hash of everything that decides the bytes of a merge."""
    request = plan.request
    facts: list[Any] = [
        *(repr(request.chains), request.dtype, request.seed, str(request.max_shard_size), header),
        _hash_statistics(request),
        plan.token_plan.digest if plan.token_plan is not None else "",
    ]
    for model in request.all_inputs:
        settings = (repr(model.weight), model.group, repr(model.options), model.part)
        facts.append((model.name, *settings))
        facts.append(identify_content(model))
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()


def _hash_statistics(request: MergeRequest) -> list[str]:
    """Return the hashes of the statistics files that a merge reads."""
    if not request.uses_statistics:
        return []
    from emberge.merging.statistics_file import open_statistics

    stages = [stage for chain in request.chains for stage in walk_stages(chain)]
    return [file.verify() for file in open_statistics(stages, request.statistics)]


def identify_content(model: MergeInput) -> str | list[Any]:
    """Return what identifies a model's content: its fingerprint, or its files with sizes and times."""
    if model.fingerprint:
        return model.fingerprint
    assert model.folder is not None
    folders = [folder.resolve() for folder in (model.folder, model.adapter) if folder is not None]
    return [*map(str, folders), model.list_files()]


def build_header(plan: MergePlan, provenance: Mapping[str, Any]) -> dict[str, str]:
    """Build the metadata of a merge's weight files: models, weights, content hashes, method, seed, versions.

    Entries of `provenance` replace these, and values that are not text become JSON; a mapping under "emberge"
    is merged with emberge's own. The metadata does not depend on the paths of the models.
    """
    request = plan.request
    facts: dict[str, Any] = {
        "strategy": [link.plain() for link in request.strategy],
        "models": {m.name: _describe_model(m, plan.weights.get(m.name)) for m in request.inputs},
        "seed": request.seed,
        "dtype": request.dtype,
        "versions": read_versions(),
    }
    if request.rules:
        facts["rules"] = {
            rule.filter: [link.plain() for link in rule.strategy] for rule in request.rules
        }
    if request.base is not None:
        facts["base"] = {
            "name": request.base.name,
            **_describe_model(request.base, plan.weights.get(request.base.name)),
        }
    our_facts = provenance.get(HEADER)
    header: dict[str, Any] = {**provenance, HEADER: facts}
    if isinstance(our_facts, Mapping):
        header[HEADER] = {**facts, **our_facts}
    return build_header_texts(header)


def _describe_model(model: MergeInput, weight: float | None) -> dict[str, Any]:
    facts = {"weight": weight, "content": model.fingerprint or None}
    return {key: value for key, value in facts.items() if value is not None}
