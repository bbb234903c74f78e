"""Merging of tensors in memory, by the same stages and runner as a merge of files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from emberge.contracts import Block, PerTensor, Stage
from emberge.merging import CopyJob, TensorJob
from emberge.merging.chain import Chain, ModelOptions, Resolver
from emberge.merging.merge_statistics import RowStatistics, StatisticsEntry
from emberge.merging.request import Compute
from emberge.merging.streaming.jobs import MergeJob, convert_piece
from emberge.merging.streaming.scheduler import (
    GRANULE_ELEMENTS,
    PutPiece,
    SchedulerLimits,
    run_jobs,
)
from emberge.numerics import DeltaProgram, NoRows, load_kernels
from emberge.tensor_files import TensorSource, TensorSpec, view_bytes
from emberge.tensor_names import find_layer, measure_depths
from torch import Tensor


@dataclass(frozen=True, slots=True)
class MemorySource:
    """A tensor in memory."""

    model: str
    tensor: Tensor

    @property
    def spec(self) -> TensorSpec:
        dtype = str(self.tensor.dtype).removeprefix("torch.")
        return TensorSpec("", tuple(self.tensor.shape), dtype)

    def read(self, start: int, into: Tensor) -> None:
        """Copy the elements from `start` on into `into`."""
        into.copy_(self.tensor.reshape(-1)[start : start + into.numel()])

    def read_bytes(self, start: int, into: memoryview) -> None:
        """Copy the bytes from byte `start` on into `into`."""
        into[:] = view_bytes(self.tensor.contiguous())[start : start + len(into)]

    def locate(self, start: int, size: int) -> tuple[int, int] | None:
        """Return None, as there is no file."""
        return None


@dataclass(frozen=True)
class _MergeSettings:
    """The settings of a merge in memory.

    `block` and `granule` count elements; `options` and `groups` are each model's, `statistics` each tensor's
    entries by model. With `compiled`, kernels are used.
    """

    dtype: Compute = "float32"
    seed: int = 0
    block: int | None = None
    granule: int = GRANULE_ELEMENTS
    workers: int = 1
    device: str = "cpu"
    options: Sequence[ModelOptions] = field(default_factory=tuple)
    groups: Sequence[str] = ()
    statistics: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)
    compiled: bool = False


def merge_state_dicts(
    models: Sequence[Mapping[str, Tensor]],
    strategy: Sequence[Stage],
    base: Mapping[str, Tensor] | None = None,
    weights: Sequence[float | PerTensor] | None = None,
    names: Sequence[str] | None = None,
    **settings: Any,
) -> dict[str, Tensor]:
    """Merge tensors of equal names and shapes in memory, and return the merged tensors by name.

    `settings` are those of `_MergeSettings`.
    """
    merge_settings = _MergeSettings(**settings)
    model_names = tuple(names or (f"model {i + 1}" for i in range(len(models))))
    factors = weights if weights is not None else [1.0] * len(models)
    schedules = [w if isinstance(w, PerTensor) else PerTensor(w) for w in factors]
    depth = measure_depths(models[0])
    options = (
        dict(zip(model_names, merge_settings.options, strict=True))
        if merge_settings.options
        else {}
    )
    chain = Chain(tuple(strategy), Resolver(options, depth))
    origin = base if any(s.base_policy != "forbidden" for s in strategy) else None

    def block(name: str, statistics: RowStatistics) -> Block:
        shape = tuple(models[0][name].shape)
        rows = NoRows(len(models), shape, merge_settings.dtype, origin is not None)
        return Block(
            name=name,
            shape=shape,
            layer=find_layer(name),
            models=model_names,
            groups=tuple(merge_settings.groups or [""] * len(models)),
            rows=DeltaProgram(rows),
            weights=np.array([s.at(name, depth[name]) for s in schedules], np.float64),
            statistics=statistics,
            seed=merge_settings.seed,
        )

    jobs: list[TensorJob] = []
    out = {name: torch.empty(t.shape, dtype=t.dtype) for name, t in models[0].items()}
    for name, first in out.items():
        spec = TensorSpec(name, tuple(first.shape), str(first.dtype).removeprefix("torch."))
        sources: list[TensorSource] = [
            MemorySource(c, m[name]) for c, m in zip(model_names, models, strict=True)
        ]
        if spec.mergeable:
            source = MemorySource("the base", origin[name]) if origin is not None else None
            statistics = _build_statistics(merge_settings.statistics.get(name, {}), spec.shape)
            jobs.append(
                MergeJob(
                    spec,
                    sources,
                    source,
                    chain,
                    block(name, statistics),
                    statistics=statistics,
                    kernels=load_kernels() if merge_settings.compiled else None,
                )
            )
        else:
            jobs.append(CopyJob(spec, sources[0], sources[1:]))
    limits = SchedulerLimits(
        workers=merge_settings.workers,
        gpus=() if merge_settings.device == "cpu" else (merge_settings.device,),
        block=merge_settings.block,
        granule=merge_settings.granule,
    )
    run_jobs(jobs, _put_into(out), limits=limits)
    return out


def _build_statistics(entries: Mapping[str, Tensor], shape: tuple[int, ...]) -> RowStatistics:
    measures = {}
    for model, entry in entries.items():
        spec = TensorSpec(model, tuple(entry.shape), str(entry.dtype).removeprefix("torch."))
        measures[model] = StatisticsEntry.of(spec, MemorySource(model, entry), shape)
    return RowStatistics({}, measures)


def _put_into(out: Mapping[str, Tensor]) -> PutPiece:
    def put(job: TensorJob, start: int, piece: Tensor | np.ndarray) -> None:
        numbers = convert_piece(piece, job.spec)
        out[job.spec.name].view(-1)[start : start + numbers.numel()].copy_(numbers)

    return put
