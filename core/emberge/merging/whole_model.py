"""A base with an adapter on it as a whole folder, for those that open folders; loads no torch by itself."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from emberge.contracts.reference import Model
from emberge.contracts.stage import MergeStrategy, Stats, WeightRole
from emberge.contracts.step import Machine
from emberge.errors import Problem
from emberge.merging.planning.plan_merge import plan_merge
from emberge.merging.request import MergeInput, MergeRequest

if TYPE_CHECKING:
    from torch import Tensor

    from emberge.contracts.block import Block

__all__ = ["whole_model", "whole_problems"]


@dataclass(frozen=True, kw_only=True)
class _AsItIs(MergeStrategy):
    """The one model there is."""

    arity = range(1, 2)
    weight_role: ClassVar[WeightRole] = "unused"

    def merge(self, block: Block, stats: Stats) -> Tensor:
        return block.tensors[0]


def whole_problems(name: str, folder: Path | None, adapter: Path | None) -> Sequence[Problem]:
    """What keeps an adapter from being put on the base in `folder`, from headers and configs alone.

    Nothing without an adapter, and of a base that is yet to be made what its absence lets see.
    """
    if adapter is None:
        return ()
    one = MergeInput(name, folder, adapter=adapter)
    plan = plan_merge(MergeRequest(inputs=(one,), strategy=(_AsItIs(),)))
    return tuple(p for p in plan.problems if p.severity == "error")


@contextmanager
def whole_model(model: Model, work: Path, machine: Machine | None = None) -> Iterator[Path]:
    """The folder of a model; of `base+adapter` one with the adapted model, in float32, until this ends.

    It lies in `work`, and one that a killed process left there is taken as it is. Memory is bounded as in a
    merge.

    Raises:
        CheckpointError: for an adapter that does not fit its base or cannot be merged, and a disk too small.
    """
    if model.adapter is None:
        yield model.folder
        return
    from emberge.merging.merge_checkpoints import merge_checkpoints  # loads torch

    out = work / "whole" / (model.fingerprint[:16] or model.adapter.name)
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        if not out.is_dir():
            one = MergeInput(
                model.name, model.folder, fingerprint=model.fingerprint, adapter=model.adapter
            )
            merge_checkpoints(
                [one], strategy=[_AsItIs()], out=out, out_dtype="float32", machine=machine
            )
        yield out
    finally:
        shutil.rmtree(out, ignore_errors=True)
