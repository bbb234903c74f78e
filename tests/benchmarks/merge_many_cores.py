"""Merges with many workers on slow disks, simulated: does the scheduler keep the disk busy?

    python -m tests.benchmarks.merge_many_cores --folder FOLDER [--only linear ties] [--rates 1 3 7]

merges the checkpoints of `tests.benchmarks.merge --size 0.6b --folder FOLDER` with one worker, and records
what each call of the merge runner took: processor time, and bytes read. Then the merge runner's own scheduler
does the same calls with 16 workers, but each call waits for a simulated disk to deliver its bytes, sleeps as
long as the recorded call computed, and waits again for the disk to take its result. The table shows the
seconds, and the share of them in which the disk was busy. `--times 12` has every tensor twelve times, as
many parameters as 7 B.

The simulation assumes cores as fast as this machine's, which do not slow each other down, and a disk that
serves one request after another. Reading ahead is not simulated, nor a queue of results: each would help.
"""

from __future__ import annotations

import argparse
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import emberge.merging.streaming.stream as stream
import numpy as np
from emberge.cli.main import main as emberge
from emberge.contracts import Measures
from emberge.merging import TensorJob
from emberge.merging.streaming.jobs import MeasuringPass, MergeJob
from emberge.merging.streaming.scheduler import (
    KERNEL_PRODUCED_BYTES,
    PRODUCED_BYTES,
    SchedulerLimits,
    run_jobs,
)

from tests.benchmarks.measure import machine_lines
from tests.benchmarks.merge import FULL, METHODS, PACKAGES, build, command

SHOWN = ("linear", "multislerp", "ties", "dare_ties", "sce", "breadcrumbs", "della")
# Kernels produce so many times as many bytes at once as other jobs, which the replayed ones are.
MORE_AT_ONCE = KERNEL_PRODUCED_BYTES // PRODUCED_BYTES


@dataclass(frozen=True)
class Call:
    """Rows of a tensor that were measured or produced: seconds of one core, and bytes read."""

    rows: range
    seconds: float
    read: int


@dataclass
class Trace:
    """The jobs of a merge, and the calls of each by the number of passes that were finished before."""

    jobs: list[MergeJob] = field(default_factory=list)
    calls: dict[tuple[str, int], list[Call]] = field(default_factory=lambda: defaultdict(list))

    def cost(self, name: str, number: int, rows: range) -> tuple[float, float]:
        """Return the seconds and the bytes of these rows, shares of the recorded calls' rows."""
        seconds = read = 0.0
        for call in self.calls[name, number]:
            common = min(call.rows.stop, rows.stop) - max(call.rows.start, rows.start)
            if common > 0:
                seconds += call.seconds * common / len(call.rows)
                read += call.read * common / len(call.rows)
        return seconds, read


@contextmanager
def recording(trace: Trace) -> Iterator[None]:
    """Record the calls of all merges in the block."""

    def recorded(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(job: MergeJob, rows: range, *more: Any) -> Any:
            stats = more[-2]
            start, read = time.thread_time(), _bytes_read()
            result = real(job, rows, *more)
            cost = time.thread_time() - start, _bytes_read() - read
            trace.calls[job.spec.name, len(stats)].append(Call(rows, *cost))
            return result

        return call

    def run(jobs: Sequence[MergeJob], *arguments: Any, **options: Any) -> None:
        trace.jobs.extend(jobs)
        run_jobs(jobs, *arguments, **options)

    real = MergeJob.measure, MergeJob.produce
    MergeJob.measure, MergeJob.produce = map(recorded, real)  # type: ignore[method-assign]
    stream.run_jobs = run  # type: ignore[assignment]
    try:
        yield
    finally:
        MergeJob.measure, MergeJob.produce = real  # type: ignore[method-assign]
        stream.run_jobs = run_jobs


def _bytes_read() -> int:
    """The bytes that this thread has read, from a disk or the page cache."""
    return int(Path("/proc/thread-self/io").read_bytes().split()[1])


class Disk:
    """A disk that serves requests one after another, at a rate in bytes a second."""

    def __init__(self, rate: float) -> None:
        self.busy = 0.0
        self._rate, self._free, self._lock = rate, 0.0, threading.Lock()

    def move(self, size: float) -> None:
        """Wait until the disk has read or written so many bytes."""
        with self._lock:
            now = time.perf_counter()
            self._free = max(self._free, now) + size / self._rate
            self.busy += size / self._rate
            until = self._free
        time.sleep(max(0.0, until - now))


class ReplayedJob(TensorJob):
    """A recorded job that waits for a simulated disk, and sleeps where the recorded one computed."""

    def __init__(self, job: MergeJob, trace: Trace, disk: Disk, copy: int) -> None:
        self.spec = replace(job.spec, name=f"{job.spec.name} {copy}")
        self._job, self._trace, self._disk, self._copy = job, trace, disk, copy

    @property
    def needs_torch(self) -> bool:
        return False

    @property
    def unit(self) -> str:
        return f"{self._job.unit} {self._copy}"

    @property
    def whole(self) -> bool:
        return self._job.whole

    @property
    def row_bytes(self) -> int:
        return self._job.row_bytes // MORE_AT_ONCE

    @property
    def passes(self) -> Sequence[MeasuringPass]:
        return [
            replace(one, key=f"{one.key} {self._copy}", join=lambda _: {})
            for one in self._job.passes
        ]

    def needs_rows(self, rows: range, stats: Sequence[Measures]) -> bool:
        calls = self._trace.calls[self._job.spec.name, len(stats)]
        return any(one.rows.start < rows.stop and rows.start < one.rows.stop for one in calls)

    def measure(self, rows: range, index: int, stats: Sequence[Measures], device: str) -> Measures:
        self._wait(rows, len(stats))
        return {}

    def conclude(self, stats: Sequence[Measures]) -> Measures:
        return stats[-1]

    def produce(self, rows: range, stats: Sequence[Measures], device: str) -> np.ndarray:
        self._wait(rows, len(stats))
        return np.empty(len(rows) * self.grid[1] * self.spec.itemsize, np.uint8)

    def _wait(self, rows: range, number: int) -> None:
        seconds, read = self._trace.cost(self._job.spec.name, number, rows)
        self._disk.move(read)
        time.sleep(seconds)


def replay(trace: Trace, rate: float, workers: int, times: int) -> tuple[float, float]:
    """Return the seconds that a replayed merge takes, and the share of them in which the disk is busy."""
    disk = Disk(rate)
    jobs = [ReplayedJob(job, trace, disk, copy) for copy in range(times) for job in trace.jobs]
    start = time.perf_counter()
    run_jobs(
        jobs,
        lambda _job, _, piece: disk.move(piece.nbytes),
        limits=SchedulerLimits(workers=workers),
    )
    seconds = time.perf_counter() - start
    return seconds, disk.busy / seconds


def record(name: str, checkpoints: list[Path], out: Path) -> Trace:
    """Merge with one worker, and return what its calls took."""
    method, trace = METHODS[name], Trace()
    shutil.rmtree(out, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    words, _ = command("emberge", method, checkpoints[: method.models + 1], out)
    with recording(trace):
        code = emberge([*words[1:], "--workers", "1"])
    if code:
        raise RuntimeError(f"the merge by {name} ended with {code}")
    shutil.rmtree(out)
    return trace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="with the checkpoints")
    parser.add_argument("--only", nargs="*", default=SHOWN, choices=METHODS, metavar="METHOD")
    parser.add_argument("--rates", nargs="*", type=float, default=(1, 3, 7), help="GB a second")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--times", type=int, default=1, help="have every tensor so many times")
    arguments = parser.parse_args()
    checkpoints = build(arguments.folder / "0.6b", FULL, 4)
    print("\n".join(machine_lines(PACKAGES)))
    print(f"{arguments.workers} workers, {arguments.times} x 0.6b")
    print(f"{'method':<14}{'CPU s':>7}{'GB read':>9}", end="")
    print("".join(f"{f'{rate:g} GB/s':>10}{'busy':>6}" for rate in arguments.rates), flush=True)
    for name in arguments.only:
        trace = record(name, checkpoints, arguments.folder / "recorded" / name)
        calls = [call for found in trace.calls.values() for call in found]
        used = sum(call.seconds for call in calls) * arguments.times
        read = sum(call.read for call in calls) * arguments.times
        print(f"{name:<14}{used:7.1f}{read / 1e9:9.1f}", end="", flush=True)
        for rate in arguments.rates:
            seconds, busy = replay(trace, rate * 1e9, arguments.workers, arguments.times)
            print(f"{seconds:8.1f} s{100 * busy:4.0f} %", end="", flush=True)
        print()


if __name__ == "__main__":
    main()
