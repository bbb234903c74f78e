"""Merges from a server by ranges, beside the speed of its line: `python -m tests.benchmarks.ranges`.

A server in a process of its own sends each connection no more than `--line` MB a second. The line's speed is
that of eight plain connections which read the same ranges of one file. Then a merge of two models and their
base is timed as a whole, and from the first byte of a tensor that it asks for to the last. CPU seconds are
those of a GB that is read, by the plain connections and by the merge.
"""

from __future__ import annotations

import argparse
import http.client
import os
import subprocess
import sys
import tempfile
import time
import unittest.mock
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import torch
from emberge import load_plugins, parse_recipe, run_recipe
from emberge.results import read_artifact
from emberge.tensor_files import ServerFile
from safetensors.torch import load_file, save_file

from tests.support import tiny

RECIPE = "steps: {{merged: {{merge: {{models: [{0}/a, {0}/b], strategy: {1}, base: {0}/base}}}}}}"
WEIGHTS = "model.safetensors"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--line", type=float, default=25.0, help="MB a second of a connection")
    parser.add_argument("--size", type=float, default=0.36, help="GB of a model")
    parser.add_argument("--strategy", default="task_arithmetic")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        root = Path(work)
        os.environ["XDG_CACHE_HOME"] = str(root / "cache")
        write_models(root / "models" / "owner", given.size)
        print(
            "| server | line MB/s | CPU s/GB | fetching MB/s | share | whole merge MB/s | share | CPU s/GB "
            "| same bytes |"
        )
        print("|---|---|---|---|---|---|---|---|---|")
        disk = merged(str(root / "models" / "owner"), root / "disk", given.strategy)[0]
        for name, faults in (("sound", ""), ("one in ten dropped, cut, throttled", "drop")):
            with_server(root, name, faults, given, disk)


def with_server(root: Path, name: str, faults: str, given: argparse.Namespace, disk: Path) -> None:
    command = [sys.executable, "-m", "tests.support.range_server", str(root / "models")]
    server = subprocess.Popen(
        [*command, str(given.line * 1e6), faults],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    url = f"{server.stdout.readline().strip()}/web/owner"
    try:
        weights = (root / "models" / "owner" / "a" / WEIGHTS).stat().st_size
        cpu = [time.process_time()]
        line = speed_of_line(url, weights)
        cpu.append(time.process_time())
        with clocked() as times:
            folder, seconds, size = merged(url, root / name, given.strategy)
        cpu.append(time.process_time())
        plain, own = (cpu[1] - cpu[0]) / weights * 1e9, (cpu[2] - cpu[1]) / size * 1e9
        same = same_tensors(disk, folder)
        fetching = max(end for _, end in times) - min(start for start, _ in times)
        speeds = [size / spent / 1e6 for spent in (fetching, seconds)]
        cells = " | ".join(f"{speed:.0f} | {speed / line:.2f}" for speed in speeds)
        print(f"| {name} | {line:.0f} | {plain:.1f} | {cells} | {own:.1f} | {same} |", flush=True)
    finally:
        server.terminate()
        server.wait()


@contextmanager
def clocked() -> Iterator[list[tuple[float, float]]]:
    """Start and end of every block that is read from a server inside the block."""
    times: list[tuple[float, float]] = []
    read = ServerFile.read

    def timed(self: ServerFile, start: int, end: int) -> bytes:
        began = time.perf_counter()
        found = read(self, start, end)
        if len(found) > 1 << 20:  # no header
            times.append((began, time.perf_counter()))
        return found

    with unittest.mock.patch.object(ServerFile, "read", timed):
        yield times


def write_models(root: Path, size: float) -> None:
    """Three siblings of one shape, about as large as asked, in float32."""
    base = tiny.checkpoint(root / "base")
    rows = int(size * 1e9 / 4 / 1024 / 6)
    for seed, name in enumerate(("base", "a", "b")):
        folder = base if name == "base" else tiny.checkpoint(root / name, seed=seed, like=base)
        torch.manual_seed(seed)
        tensors = load_file(folder / WEIGHTS)
        tensors |= {f"encoder.layer.0.more.{n}.weight": torch.randn(rows, 1024) for n in range(6)}
        save_file(tensors, folder / WEIGHTS, {"format": "pt"})


def speed_of_line(url: str, size: int) -> float:
    """MB a second of eight connections that read one model's weights in plain ranges of 4 MB."""
    place = urlsplit(f"{url}/a/{WEIGHTS}")
    ranges = [(start, min(size, start + (4 << 20)) - 1) for start in range(0, size, 4 << 20)]

    def fetch(one: tuple[int, int]) -> int:
        while True:
            try:
                found = len(_range(place.netloc, place.path, *one))
            except (OSError, http.client.HTTPException):
                continue
            if found == one[1] - one[0] + 1:
                return found

    began = time.perf_counter()
    with ThreadPoolExecutor(8) as threads:
        total = sum(threads.map(fetch, ranges))
    return total / (time.perf_counter() - began) / 1e6


def _range(place: str, path: str, start: int, end: int) -> bytes:
    connection = http.client.HTTPConnection(place, timeout=60)
    try:
        connection.request("GET", path, headers={"Range": f"bytes={start}-{end}"})
        return connection.getresponse().read()
    finally:
        connection.close()


def merged(at: str, out: Path, strategy: str) -> tuple[Path, float, int]:
    """The folder of a merge, its seconds, and the bytes that came from servers."""
    plugins = load_plugins()
    recipe = parse_recipe(RECIPE.format(at, strategy), plugins, path=out / "recipe.yaml")
    began = time.perf_counter()
    folder = Path(run_recipe(recipe, out, plugins, quiet=True)["merged"])
    seconds = time.perf_counter() - began
    artifact = read_artifact(folder)
    assert artifact is not None
    return folder, seconds, sum(one["fetched"] for one in artifact.details.get("fetched", ()))


def same_tensors(one: Path, other: Path) -> bool:
    first, second = load_file(one / WEIGHTS), load_file(other / WEIGHTS)
    return first.keys() == second.keys() and all(
        torch.equal(first[name].view(torch.uint8), second[name].view(torch.uint8)) for name in first
    )


if __name__ == "__main__":
    main()
