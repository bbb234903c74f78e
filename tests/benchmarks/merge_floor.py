"""The floor of a merge: all inputs read, and as many bytes written as a merge writes, with no arithmetic.

    python -m tests.benchmarks.merge_floor OUT MODEL [MODEL ...]

reads every tensor of all models block by block, on as many threads as there are cores, and writes the first
model's bytes, through the reader and the writer that merges use. Nothing is hashed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from emberge.devices import count_usable_cores
from emberge.model_folder import Checkpoint
from emberge.numerics import reuse_tensor
from emberge.tensor_files import TensorReader, TensorSpec, TensorWriter, view_bytes

BLOCK = 1 << 20
"""Bytes that are read of each model at once."""


def copy(out: Path, models: Sequence[Path]) -> None:
    """Read all models and write the first one's tensors into `out`."""
    checkpoints = [Checkpoint(model).specs for model in models]
    writer = TensorWriter(out, list(checkpoints[0].values()), {})
    writer.begin()
    with TensorReader() as reader, ThreadPoolExecutor(count_usable_cores()) as pool:

        def block(name: str, start: int, size: int) -> None:
            pieces = [_read(reader, specs, name, start, size) for specs in checkpoints[::-1]]
            spec = checkpoints[0][name]
            writer.write(name, start // spec.itemsize, pieces[-1].view(getattr(torch, spec.dtype)))

        done = [
            pool.submit(block, name, start, min(BLOCK, spec.nbytes - start))
            for name, spec in checkpoints[0].items()
            for start in range(0, spec.nbytes, BLOCK)
        ]
        for one in done:
            one.result()
    writer.finish()


def _read(
    reader: TensorReader, specs: Mapping[str, TensorSpec], name: str, start: int, size: int
) -> torch.Tensor:
    """Return bytes of a tensor, in this thread's buffer."""
    raw = reuse_tensor("floor", size, torch.uint8)
    reader.read_bytes(specs[name], start, view_bytes(raw))
    return raw


if __name__ == "__main__":
    copy(Path(sys.argv[1]), [Path(word) for word in sys.argv[2:]])
