"""A checkpoint that is built of copies and of derived tensors, as an upcycling would build it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge.merging import CopyJob, build_checkpoint
from emberge.model_folder import Checkpoint
from emberge.tensor_files import DerivedTensor, FileSource, TensorReader

if TYPE_CHECKING:
    from emberge.merging import TensorJob
    from emberge.tensor_files import RowReader, TensorSpec
    from torch import Tensor

EXPERTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean(DerivedTensor):
    """The mean of tensors of one shape."""

    of: tuple[TensorSpec, ...]

    def compute(self, reader: RowReader, rows: range, into: Tensor) -> None:
        one = into.new_empty(into.shape)
        into.zero_()
        for spec in self.of:
            reader.read(spec, rows.start * into.shape[1], one.view(-1))
            into += one
        into /= len(self.of)


def upcycled(checkpoint: Checkpoint, inner: str, reader: TensorReader) -> Sequence[TensorJob]:
    """Copies of all tensors, of the one called `inner` for each expert, and the mean of those like it."""
    specs = checkpoint.specs
    jobs = [
        CopyJob(spec, FileSource("dense", spec, reader))
        for name, spec in specs.items()
        if name != inner
    ]
    source = FileSource("dense", specs[inner], reader)
    jobs += [
        CopyJob(source.spec.with_name(f"experts.{expert}.weight"), source)
        for expert in range(EXPERTS)
    ]
    like = tuple(spec for spec in specs.values() if spec.shape == source.spec.shape)
    mean = Mean("mean.weight", source.spec.shape, "float32", of=like)
    return [*jobs, CopyJob(mean, FileSource("the mean", mean, reader))]


def build(dense: Path, out: Path, inner: str, **settings: Any) -> Path:
    """Build the upcycled checkpoint of a dense one at `out`."""
    template = Checkpoint(dense)
    with TensorReader() as reader:
        jobs = upcycled(template, inner, reader)
        build_checkpoint(jobs, out, template=template, key="upcycled", **settings)
    return out
