"""`emberge diff` beside the mere reading of both checkpoints: wall, CPU, memory, and their ratio.

    python -m tests.benchmarks.diff [--small] [--repeat 3] [--workers 2] [--folder DIR]

builds two checkpoints of Qwen3-0.6B's shape (596 M parameters each, bf16, three shards), and runs whole
processes in turn, each on `--workers` threads and from the page cache: one that reads every byte of both
(`bytes`), one that reads every number of both as float32 (`numbers`), and `emberge diff`. Printed are medians
over `--repeat` rounds and the ratios to both; memory is the peak of RssAnon.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.measure import Cost, median, run, warm
from tests.benchmarks.merge import FULL, SMALL, build

# Tensors are read a piece at a time, on threads, by the reader that merges use.
READ = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import torch
from emberge.model_folder import Checkpoint
from emberge.tensor_files import TensorReader
from emberge.tensor_files.tensor_reader import bytes_of, scratch
PIECE = 1 << 18
torch.set_num_threads(1)
reader, decoded = TensorReader(), sys.argv[1] == "numbers"
def read(piece):
    spec, start = piece
    count = min(PIECE, spec.elements - start)
    if decoded:
        reader.read(spec, start, scratch("read", count, torch.float32))
    else:
        into = scratch("read", count * spec.itemsize, torch.uint8)
        reader.read_bytes(spec, start * spec.itemsize, bytes_of(into))
specs = [s for folder in sys.argv[3:] for s in Checkpoint(Path(folder)).specs.values()]
pieces = [(s, start) for s in specs for start in range(0, s.elements, PIECE)]
with ThreadPoolExecutor(int(sys.argv[2])) as pool:
    for _ in pool.map(read, pieces):
        pass
"""
MEMORY = 300e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--small", action="store_true", help="8 layers, a vocabulary of 8,192")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="keep the checkpoints here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        models = build(folder, SMALL if options.small else FULL, 1)
        found = compare(models, options.repeat, options.workers)
    for name, cost in found.items():
        print(
            f"{name:<14} {cost.wall:6.2f} s  CPU {cost.cpu:6.2f} s  "
            f"RssAnon {cost.anonymous / 1e6:4.0f} MB"
        )
    ours = found["emberge diff"]
    for peer in ("bytes", "numbers"):
        print(f"ratio to reading {peer}: {ours.wall / found[peer].wall:.2f}")
    print(f"memory: {ours.anonymous / 1e6:.0f} of {MEMORY / 1e6:.0f} MB")


def compare(models: list[Path], repeat: int, workers: int) -> dict[str, Cost]:
    """Run the readers and the comparison in turn; return the median cost of each."""
    paths = [str(path) for path in models]
    python = sys.executable
    commands = {
        **{what: [python, "-c", READ, what, str(workers), *paths] for what in ("bytes", "numbers")},
        "emberge diff": [python, "-m", "emberge", "diff", *paths, "--workers", str(workers)],
    }
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for _ in range(repeat):
        for name, command in commands.items():
            warm(models, gibibytes=1)
            costs[name].append(run(command))
    return {name: median(found) for name, found in costs.items()}


if __name__ == "__main__":
    main()
