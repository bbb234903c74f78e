"""The process that the benchmark of upcycling measures: one build, and nothing else imported.

python -m tests.benchmarks.upcycle_build DENSE OUT
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from emberge import Machine
from emberge.engine import (
    Checkpoint,
    CopyJob,
    DerivedTensor,
    FileSource,
    build_checkpoint,
    layer_of,
)

if TYPE_CHECKING:
    from emberge.engine import TensorJob, TensorReader
    from torch import Tensor

EXPERTS, TOP_K = 8, 2
SECONDS = "seconds.txt"


@dataclass(frozen=True, slots=True)
class Zeros(DerivedTensor):
    """A tensor of zeros."""

    def compute(self, reader: object, rows: range, into: Tensor) -> None:
        into.zero_()


def upcycle(dense: Path, out: Path) -> None:
    """Build the upcycled checkpoint, and write beside it how many seconds that took."""
    template = Checkpoint(dense)
    began = time.perf_counter()
    with template.reader() as reader:
        changes = {"model_type": "qwen3_moe", "num_experts": EXPERTS, "num_experts_per_tok": TOP_K}
        build_checkpoint(
            upcycling_jobs(template.folder, reader),
            out,
            template=template,
            files={"config.json": {**template.config, **changes, "decoder_sparse_step": 2}},
            key=f"upcycled {dense}",
            machine=Machine(workers=2),
        )
    (out.parent / SECONDS).write_text(str(time.perf_counter() - began))


def upcycling_jobs(dense: Path, reader: TensorReader) -> list[TensorJob]:
    """A copy a tensor, for every second layer's feed-forward part one an expert, and routers of zeros."""
    jobs: list[TensorJob] = []
    for name, spec in Checkpoint(dense).specs.items():
        before, routed, after = name.partition(".mlp.")
        routed_here = bool(routed) and int(layer_of(name).rpartition(".")[2]) % 2 == 1
        experts = [f"{before}.mlp.experts.{expert}.{after}" for expert in range(EXPERTS)]
        source = FileSource("dense", spec, reader)
        jobs += [CopyJob(spec.renamed(new), source) for new in (experts if routed_here else [name])]
        if routed_here and after == "up_proj.weight":
            router = Zeros(f"{before}.mlp.gate.weight", (EXPERTS, spec.shape[1]), spec.dtype)
            jobs.append(CopyJob(router, FileSource("the router", router, reader)))
    return jobs


if __name__ == "__main__":
    upcycle(Path(sys.argv[1]), Path(sys.argv[2]))
