"""Translation of a large npy file against copying it and against its product alone.

    python -m tests.benchmarks.translate [ROWS] [DIMENSION] [FOLDER]

Prints wall and CPU seconds of each, the peak memory of the translation, and its share of the copy's speed.
The copy ends, as the translation does, with the file on the disk. The product alone is what no program can be
faster than on this processor: ROWS × DIMENSION × DIMENSION in float32 on OMP_NUM_THREADS threads.

1,000,000 x 1,024 on two threads of an AMD EPYC: 20 s of wall time, 37 of CPU, for the translation, 10 and 18
for the product alone, 3 to 11 for a copy; 85 MB. The product bounds the speed there, not the disk.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

CHUNK = 16 << 20
PIECE = 4096


def write_input(path: Path, rows: int, dimension: int) -> None:
    """Write random vectors of length 1, a piece at a time, the same ones in turns."""
    draw = np.random.default_rng(0).normal(size=(PIECE, dimension)).astype(np.float32)
    draw /= np.linalg.norm(draw, axis=1, keepdims=True)
    header = {"descr": "<f4", "fortran_order": False, "shape": (rows, dimension)}
    with path.open(
        "wb"
    ) as file:  # not mapped: pages of a map would count as memory of the commands
        np.lib.format.write_array_header_1_0(file, header)
        for first in range(0, rows, PIECE):
            file.write(draw[: min(PIECE, rows - first)].tobytes())


def write_map(folder: Path, dimension: int) -> None:
    from emberge_index import Map, SpaceOf, Translation, TranslationHeader

    draw = np.random.default_rng(1)
    old = SpaceOf("old", "a" * 64, "", dimension, True)
    new = SpaceOf("new", "b" * 64, "", dimension, True)
    header = TranslationHeader("affine", "documents", old, new, 1000)
    fitted = Map(
        np.eye(dimension) + 0.01 * draw.normal(size=(dimension, dimension)), np.zeros(dimension)
    )
    axes = np.sqrt(dimension) * np.eye(dimension, dtype=np.float32)
    folder.mkdir()
    Translation(header, fitted, np.zeros(dimension), axes, float(dimension)).write(folder, {})


def copy(source: Path, target: Path) -> None:
    with source.open("rb") as read, target.open("wb") as write:
        while data := read.read(CHUNK):
            write.write(data)
        os.fsync(write.fileno())


def product(rows: int, dimension: int) -> None:
    block = np.random.default_rng(0).normal(size=(PIECE, dimension)).astype(np.float32)
    matrix, found = np.eye(dimension, dtype=np.float32), np.empty_like(block)
    for _ in range(-(-rows // PIECE)):
        np.matmul(block, matrix, out=found)


def timed(name: str, work: Callable[[], None]) -> float:
    begun, before = time.perf_counter(), sum(os.times()[:4])
    work()
    wall, cpu = time.perf_counter() - begun, sum(os.times()[:4]) - before
    print(f"{name:14} {wall:8.1f} s wall {cpu:8.1f} s CPU", flush=True)
    return wall


def main(rows: int, dimension: int, parent: str | None) -> None:
    with tempfile.TemporaryDirectory(dir=parent) as name:
        root = Path(name)
        source, out = root / "old.npy", root / "new.npy"
        write_input(source, rows, dimension)
        write_map(root / "by", dimension)
        os.sync()
        print(f"{rows:,} x {dimension:,} float32, {source.stat().st_size / 1e9:.2f} GB")
        words = ["translate", str(source), "--by", str(root / "by"), "--out", str(out)]
        command = [sys.executable, "-m", "emberge", *words, "--quiet", "--any-model"]
        copied = timed("copy", lambda: copy(source, root / "copy.npy"))
        (root / "copy.npy").unlink()
        floor = timed("product alone", lambda: product(rows, dimension))
        translated = timed("translate", lambda: subprocess.run(command, check=True) and None)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        out.unlink()
        again = timed("copy again", lambda: copy(source, root / "copy.npy"))
        print(f"peak memory of the translation: {peak:.0f} MB")
        for name, seconds in (("first copy", copied), ("second copy", again)):
            print(f"of the {name}'s speed: {seconds / translated:.2f}")
        print(f"of the product's speed: {floor / translated:.2f}")


if __name__ == "__main__":
    given = sys.argv[1:]
    main(
        *[int(word) for word in (given + ["1000000", "1024"][len(given) :])[:2]],
        (given[2:] or [None])[0],
    )
