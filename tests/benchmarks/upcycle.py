"""Upcycling beside a plain copy of what it writes: seconds, bytes a second, and memory.

    python -m tests.benchmarks.upcycle [--small] [--repeat 3]

builds a checkpoint of Qwen3-0.6B's shape (596 M parameters, bf16; `--small` has 8 layers and a small
vocabulary), upcycles every second layer to 8 experts, and copies the result, file by file and synced. Both
read from the page cache: the result, which was written past it, is read before it is copied. The step's own
seconds are beside those of the whole process, which starts Python and imports torch. Medians over `--repeat`
interleaved rounds; memory is the peak of RssAnon.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.measure import Cost, median, run, warm
from tests.benchmarks.merge import BIN, FULL, SMALL, build

COPY = """
import os, shutil, sys
from pathlib import Path
source, target = map(Path, sys.argv[1:])
target.mkdir()
for file in source.glob("*.safetensors"):
    shutil.copyfile(file, target / file.name)
    with open(target / file.name, "rb") as copied:
        os.fsync(copied.fileno())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--small", action="store_true", help="8 layers, a vocabulary of 8,192")
    parser.add_argument("--repeat", type=int, default=1)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="emberge-benchmark-"))
    try:
        (model,) = build(folder / "models", SMALL if arguments.small else FULL, 0)
        measure(model, folder, arguments.repeat)
    finally:
        shutil.rmtree(folder)


def measure(model: Path, folder: Path, repeat: int) -> None:
    """Print a line for the upcycling and one for the copy."""
    options = {"model": str(model), "experts": 8, "compare": False}
    recipe = folder / "recipe.yaml"
    recipe.write_text(json.dumps({"steps": {"routed": {"upcycle": options}}}))
    upcycled: list[Cost] = []
    copied: list[Cost] = []
    steps = []
    for _ in range(repeat):
        warm([model])
        out, copy = folder / "out", folder / "copy"
        upcycled.append(run([str(BIN / "emberge"), "run", str(recipe), "--out", str(out)]))
        result = (out / "routed").resolve()
        steps.append(json.loads((result / "artifact.json").read_text())["seconds"])
        warm([result])
        copied.append(run([sys.executable, "-c", COPY, str(result), str(copy)]))
        size = sum(file.stat().st_size for file in result.glob("*.safetensors"))
        shutil.rmtree(out)
        shutil.rmtree(copy)
    ours, peer, step = median(upcycled), median(copied), sorted(steps)[(repeat - 1) // 2]
    print(f"{size / 1e9:.2f} GB written")
    print(f"{'':<10}{'wall s':>8}{'step s':>8}{'CPU s':>8}{'GB/s':>8}{'anon MB':>9}")
    for name, cost, own in (("upcycle", ours, step), ("copy", peer, peer.wall)):
        print(
            f"{name:<10}{cost.wall:>8.1f}{own:>8.1f}{cost.cpu:>8.1f}{size / 1e9 / own:>8.2f}"
            f"{cost.anonymous / 1e6:>9.0f}"
        )


if __name__ == "__main__":
    main()
