"""Writing an upcycled checkpoint beside a plain copy of the same bytes: speed, and memory.

    python -m tests.benchmarks.upcycle [--small] [--repeat 3] [--folder DIR]
    python -m pytest -m benchmark -s tests/benchmarks/upcycle.py

The dense model has Qwen3-0.6B's shape (bf16, 1.2 GB in three shards; `--small` has 8 layers and a small
vocabulary). In every second layer, the feed-forward part is copied to eight experts, beside a router: 3.1 GB.
The copy is `cp` of the finished folder. Both wait until all is on the disk. The build has a process of its
own; its speed is that of `build_checkpoint` (`whole` counts the process with its imports), its memory the
peak of RssAnon of the whole process, torch included. Wanted: 60 % of the copy's speed, 300 MB.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.benchmarks.measure import Cost, run, warm
from tests.benchmarks.merge import FULL, SMALL, build
from tests.benchmarks.upcycle_build import SECONDS

BUILD = [sys.executable, "-m", "tests.benchmarks.upcycle_build"]
MEMORY = 300e6


@dataclass(frozen=True)
class Figures:
    """Medians of the rounds: bytes written, seconds of the build and of the copy, the build's process."""

    size: int
    build: float
    copy: float
    process: Cost

    def __str__(self) -> str:
        built, copied = self.size / self.build / 1e6, self.size / self.copy / 1e6
        process = self.process
        return (
            f"{self.size / 1e9:.2f} GB: built at {built:.0f} MB/s, copied at {copied:.0f} MB/s "
            f"({built / copied:.0%}); whole process {process.wall:.1f} s, CPU {process.cpu:.1f} s, "
            f"{process.anonymous / 1e6:.0f} MB"
        )


@pytest.mark.benchmark
def test_an_upcycled_checkpoint_is_written_in_little_memory(tmp_path: Path) -> None:
    figures = measure(tmp_path, FULL, repeat=3)
    print(f"\n{figures}")
    assert figures.process.anonymous <= MEMORY


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--small", action="store_true", help="8 layers, a vocabulary of 8,192")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="keep the checkpoints here")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="emberge-benchmark-"))
    try:
        print(measure(folder, SMALL if arguments.small else FULL, arguments.repeat))
    finally:
        if arguments.folder is None:
            shutil.rmtree(folder)


def measure(folder: Path, sizes: tuple[int, ...], repeat: int) -> Figures:
    """Build and copy in turn, `repeat` times, in `folder`."""
    (dense,) = build(folder / f"dense-{sizes[3]}", sizes, models=0)
    out, copied = folder / "out", folder / "copied"
    costs, builds, copies = [], [], []
    for _ in range(repeat):
        shutil.rmtree(out, ignore_errors=True)
        warm([dense])
        costs.append(run([*BUILD, str(dense), str(out)]))
        builds.append(float((folder / SECONDS).read_text()))
        shutil.rmtree(copied, ignore_errors=True)
        warm([out])
        script = f"cp -r --reflink=never {out} {copied} && find {copied} -type f -exec sync {{}} +"
        copies.append(run(["sh", "-c", script]).wall)
    size = sum(file.stat().st_size for file in out.rglob("*.safetensors"))
    middle = sorted(costs, key=lambda cost: cost.wall)[(repeat - 1) // 2]
    return Figures(size, statistics.median(builds), statistics.median(copies), middle)


if __name__ == "__main__":
    main()
