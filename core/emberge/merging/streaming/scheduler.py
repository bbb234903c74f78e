"""Threads that work on granules of a few units of jobs at a time, in a bounded memory."""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from emberge.contracts.block import rows_of
from emberge.errors import CheckpointError
from emberge.merging.streaming.device_streams import DeviceStreams, on_cpu
from emberge.merging.streaming.jobs import TensorJob
from emberge.merging.streaming.memory_budget import GRANULE, block_elements
from emberge.merging.streaming.units import MeasureGroup, Meter, OrderedReducer, Progress
from emberge.wording import human_size

__all__ = ["GRANULE", "Limits", "Progress", "run_jobs"]

# Numbers of mallopt's parameters, from malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3

Put = Callable[[TensorJob, int, Tensor], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """How the machine does it; none of this shows in the bytes, except `granule`, which tests vary.

    `memory` is in bytes; `block` is the number of elements produced at once, at least a row, and what
    suits the job if None. Workers share the devices out among them.
    """

    workers: int = 1
    memory: int | None = None
    devices: tuple[str, ...] = ("cpu",)
    block: int | None = None
    granule: int = GRANULE


def run_jobs(
    jobs: Sequence[TensorJob],
    put: Put,
    *,
    limits: Limits,
    finished: Callable[[TensorJob], None] | None = None,
    progress: Progress | None = None,
    units: Mapping[str, Sequence[TensorJob]] | None = None,
) -> None:
    """Measure and produce the jobs, unit by unit, and `put` each piece (job, first element, tensor).

    `units` lists all jobs of a unit where some need only be measured.
    """
    if units is None:
        units = by_unit(jobs)
    meter = Meter(sum(job.spec.nbytes for job in jobs), progress)
    wanted = {id(job) for job in jobs}
    _require_memory(jobs, limits)
    _keep_freed_blocks()
    one = functools.partial(torch.set_num_threads, 1)
    with _one_thread_each(), ThreadPoolExecutor(limits.workers, "merge", one) as pool:
        crew = _TensorScheduler(pool, limits, put, finished, meter)
        try:
            for members in units.values():
                crew.begin(MeasureGroup(members, wanted))
            crew.wait()
        finally:
            crew.stop()


def by_unit(jobs: Sequence[TensorJob]) -> dict[str, list[TensorJob]]:
    """The jobs by unit, units and jobs in the order given."""
    units: dict[str, list[TensorJob]] = {}
    for job in jobs:
        units.setdefault(job.unit, []).append(job)
    return units


@contextmanager
def _one_thread_each() -> Iterator[None]:
    # Sums must not depend on how many threads torch would split them over, and workers are threads already.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(threads)


@functools.cache
def _keep_freed_blocks() -> None:
    """Have glibc reuse the memory of passing blocks: fresh pages cost more than most arithmetic on them."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_TRIM_THRESHOLD, 128 << 20)


class _TensorScheduler:
    """Threads that work on granules of a few units at a time."""

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        limits: Limits,
        put: Put,
        finished: Callable[[TensorJob], None] | None,
        meter: Meter,
    ) -> None:
        self._pool, self._limits, self._put = pool, limits, put
        self._finished, self._meter = finished, meter
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)
        self._active = 0
        self._error: BaseException | None = None
        self._left: dict[int, int] = {}
        self._lanes = DeviceStreams(limits.devices)

    def begin(self, unit: MeasureGroup) -> None:
        """Start a unit as soon as few enough are under way."""
        with self._idle:
            while self._active > self._limits.workers and self._error is None:
                self._idle.wait()
            if self._error is not None:
                return
            self._active += 1
        self._submit(functools.partial(self._go_on, unit))

    def wait(self) -> None:
        """Return when all is done; raise the first error."""
        with self._idle:
            while self._active and self._error is None:
                self._idle.wait()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Let what has not begun go undone."""
        with self._idle:
            self._error = self._error or RuntimeError("stopped")
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _submit(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            if self._error is not None:
                return
            try:
                with torch.no_grad():
                    work()
            except BaseException as error:
                with self._idle:
                    self._error = self._error or error
                    self._idle.notify_all()

        self._pool.submit(guarded)

    def _go_on(self, unit: MeasureGroup) -> None:
        """Begin the unit's next phase: a pass that somebody wants, or the production."""
        while unit.phase < unit.passes:
            if self._measure(unit):
                return
            self._conclude(unit)
        self._produce(unit)

    def _measure(self, unit: MeasureGroup) -> bool:
        unit.folds = {}
        work: list[tuple[TensorJob, range, int, OrderedReducer, int]] = []
        for job in unit.jobs:
            this = job.passes[unit.phase]
            fold = unit.folds.setdefault(this.key, OrderedReducer(this.join))
            for index, rows in enumerate(_pieces(job, self._limits.granule)):
                if job.needs_rows(rows, unit.stats[id(job)]):
                    work.append((job, rows, index, fold, fold.count))
                    fold.count += 1
        self._left[id(unit)] = len(work)
        for item in work:
            self._submit(functools.partial(self._measure_one, unit, *item))
        return bool(work)

    def _measure_one(
        self,
        unit: MeasureGroup,
        job: TensorJob,
        rows: range,
        index: int,
        fold: OrderedReducer,
        place: int,
    ) -> None:
        self._wait_for_turn(fold, place)
        with self._lanes.mine() as device:
            measures = on_cpu(job.measure(rows, index, unit.stats[id(job)], device))
        with self._idle:
            fold.add(place, measures)
            self._idle.notify_all()
            self._left[id(unit)] -= 1
            last = self._left[id(unit)] == 0
        if last:
            self._conclude(unit)
            self._go_on(unit)

    def _wait_for_turn(self, fold: OrderedReducer, place: int) -> None:
        """Let a thread that was held up catch up: measures ahead of it would pile up in memory.

        The next place of a fold was begun before all that wait for it, so somebody always goes on.
        """
        with self._idle:
            while place > fold.next + 4 * self._limits.workers and self._error is None:
                self._idle.wait()

    def _conclude(self, unit: MeasureGroup) -> None:
        joined = {key: fold.result() for key, fold in unit.folds.items()}
        for job in unit.jobs:
            stats = unit.stats[id(job)]
            stats.append(joined[job.passes[unit.phase].key])
            stats[-1] = job.conclude(stats)
        unit.phase += 1
        unit.folds = {}

    def _produce(self, unit: MeasureGroup) -> None:
        work = [(job, list(_pieces(job, _block(job, self._limits))), [0]) for job in unit.produced]
        count = sum(len(pieces) for _, pieces, _ in work)
        self._left[id(unit)] = count
        for job, pieces, _ in work:
            if not pieces and self._finished is not None:
                self._finished(job)  # a tensor without rows
        for job, pieces, done in work:
            for rows in pieces:
                self._submit(
                    functools.partial(self._produce_one, unit, job, rows, (done, len(pieces)))
                )
        if not count:
            self._end(unit)

    def _produce_one(
        self, unit: MeasureGroup, job: TensorJob, rows: range, count: tuple[list[int], int]
    ) -> None:
        with self._lanes.mine() as device:
            piece = job.produce(rows, unit.stats[id(job)], device)
        self._put(job, rows.start * rows_of(job.spec.shape)[1], piece)
        self._meter.add(piece.nbytes, job.spec.name)
        done, pieces = count
        with self._lock:
            done[0] += 1
            whole = done[0] == pieces
            self._left[id(unit)] -= 1
            last = self._left[id(unit)] == 0
        if whole and self._finished is not None:
            self._finished(job)
        if last:
            self._end(unit)

    def _end(self, unit: MeasureGroup) -> None:
        with self._idle:
            self._left.pop(id(unit), None)
            self._active -= 1
            self._idle.notify_all()


def _pieces(job: TensorJob, elements: int) -> Iterator[range]:
    rows, width = rows_of(job.spec.shape)
    step = max(1, rows) if job.whole else max(1, elements // max(1, width))
    for start in range(0, rows, step):
        yield range(start, min(rows, start + step))


def _block(job: TensorJob, limits: Limits) -> int:
    each = max(1, job.row_bytes // max(1, rows_of(job.spec.shape)[1]))
    fitting = block_elements(each, workers=limits.workers, memory=limits.memory)
    if limits.block is None:
        return fitting
    return limits.block if limits.memory is None else min(limits.block, fitting)


def _require_memory(jobs: Sequence[TensorJob], limits: Limits) -> None:
    for job in jobs:
        need = job.row_bytes * rows_of(job.spec.shape)[0] if job.whole else job.row_bytes
        if limits.memory is not None and need > limits.memory:
            raise CheckpointError(
                f"{job.spec.name}: needs {human_size(need)} at once and the limit is "
                f"{human_size(limits.memory)}; allow more with --memory, or give it another strategy by "
                "a rule"
            )
