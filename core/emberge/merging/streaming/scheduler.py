"""The scheduler: threads measure and produce the jobs of a few units at a time, in bounded memory."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from emberge.contracts import Machine, Measures
from emberge.devices import limit_torch_threads
from emberge.errors import CheckpointError
from emberge.interpreter import keep_freed_blocks
from emberge.merging.streaming.jobs import MergeJob, TensorJob, is_usable
from emberge.tensor_files import QUEUE
from emberge.wording import format_size

if TYPE_CHECKING:
    from torch import Tensor

PutPiece = Callable[[TensorJob, int, "Tensor | np.ndarray"], None]
Progress = Callable[[float, float, str], None]
Task = Callable[[], None]
# The measures of a job's finished passes, by id of the job.
MeasuresByJob = dict[int, list[Measures]]
# Measures that are joined at once.
_MEASURES_PER_JOIN = 16
GRANULE_ELEMENTS = 1 << 19
"""Elements measured at once, on every machine, as another value changes the last bits of sums."""
PRODUCED_BYTES = 12 << 20
"""Largest number of bytes of the rows that a thread produces at once.

More bytes do not fit into the caches; with fewer bytes, the calls cost more than the arithmetic.
"""
KERNEL_PRODUCED_BYTES = 48 << 20
"""The same for compiled kernels, which read a window of the rows at a time into the caches."""


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Limits of threads, devices and memory; only `granule`, which tests vary, changes a merge's bytes.

    `memory` is in bytes; `block` is the number of elements produced at once, at least a row; None chooses it
    for each job. Workers share the devices.
    """

    workers: int = 1
    memory: int | None = None
    devices: tuple[str, ...] = ("cpu",)
    block: int | None = None
    granule: int = GRANULE_ELEMENTS

    @property
    def uses_gpu(self) -> bool:
        """True if any work is done on a GPU."""
        return any(device != "cpu" for device in self.devices)

    @classmethod
    def of(cls, machine: Machine) -> SchedulerLimits:
        """Return a machine's limits, with at least two threads a GPU: one copies while one computes."""
        gpus = [device for device in machine.devices if device != "cpu"]
        workers = max(1, machine.workers, 2 * len(gpus))
        return cls(workers=workers, memory=machine.memory, devices=tuple(gpus) or ("cpu",))


@dataclass(frozen=True, slots=True)
class MeasuredJobs:
    """A group of jobs that are measured together, and those among them to produce."""

    jobs: Sequence[TensorJob]
    jobs_to_produce: Sequence[TensorJob]


def run_jobs(
    jobs: Sequence[TensorJob],
    put: PutPiece,
    *,
    limits: SchedulerLimits,
    finished: Callable[[TensorJob], None] | None = None,
    progress: Progress | None = None,
    units: Mapping[str, Sequence[TensorJob]] | None = None,
    failed: Callable[[], None] | None = None,
) -> None:
    """Measure and produce the jobs, unit by unit, and `put` each piece (job, first element, tensor).

    `units` lists all jobs of units in which some jobs are only measured. If an error ends the work, `failed`
    is called before the threads are joined; it must cancel requests for which threads may be waiting.
    """
    if units is None:
        units = group_by_unit(jobs)
    job_ids = {id(job) for job in jobs}
    groups = [
        MeasuredJobs(group, [job for job in group if id(job) in job_ids])
        for group in units.values()
    ]
    _require_memory(jobs, limits)
    keep_freed_blocks()
    jobs_at_work = itertools.chain(jobs, *units.values())
    needs_torch = limits.uses_gpu or any(job.needs_torch for job in jobs_at_work)
    with (
        # Sums must not depend on how many threads torch would split them over; workers are threads already.
        limit_torch_threads(1) if needs_torch else nullcontext(),
        ThreadPoolExecutor(limits.workers, "merge", _prepare_thread, (needs_torch,)) as pool,
    ):
        total = sum(job.spec.nbytes for job in jobs)
        _TensorScheduler(pool, limits, put, finished, progress, total).run(groups, failed)


def group_by_unit(jobs: Sequence[TensorJob]) -> dict[str, list[TensorJob]]:
    """Group the jobs by unit, units and jobs in the order given."""
    units: dict[str, list[TensorJob]] = {}
    for job in jobs:
        units.setdefault(job.unit, []).append(job)
    return units


def _prepare_thread(needs_torch: bool) -> None:
    """Let the calling thread work with arrays and tensors, alone and without gradients.

    NumPy does not warn of what is not finite, as torch does not: rows and results are checked.
    """
    np.seterr(all="ignore")
    if needs_torch:
        import torch

        torch.set_num_threads(1)
        torch.set_grad_enabled(False)


class _TaskCountdown:
    """A counter that several threads decrease."""

    def __init__(self, count: int) -> None:
        self._left, self._lock = count, threading.Lock()

    def reaches_zero(self) -> bool:
        """Decrease the count by one, and return whether it is zero now."""
        with self._lock:
            self._left -= 1
            return self._left == 0


class _TensorScheduler:
    """Threads that work on the granules of a few units at a time.

    The work of a unit is a generator of phases (`_plan_phases`). Any threads do the work of one phase; the
    thread that finishes the phase's last work takes the next phase from the generator.
    """

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        limits: SchedulerLimits,
        put: PutPiece,
        finished: Callable[[TensorJob], None] | None,
        progress: Progress | None,
        total: int,
    ) -> None:
        self._pool, self._limits, self._put, self._finished = pool, limits, put, finished
        self._progress, self._produced_bytes, self._total_bytes = progress, 0, total
        self._counting = threading.Lock()
        self._changed = threading.Condition(threading.RLock())
        self._active = 0
        self._error: BaseException | None = None
        self._streams = DeviceStreams(limits.devices)

    def run(self, units: Iterable[MeasuredJobs], failed: Callable[[], None] | None) -> None:
        """Run all units, several at once to keep threads busy; after an error call `failed` and raise it."""
        try:
            for unit in units:
                self._wait_while(lambda: self._active > self._limits.workers)
                with self._changed:
                    self._active += 1
                self._submit(functools.partial(self._start_next_phase, self._plan_phases(unit)))
            self._wait_while(lambda: self._active > 0)
            if self._error is not None:
                raise self._error
        except BaseException:
            if failed is not None:
                failed()
            raise
        finally:
            with self._changed:
                self._error = self._error or RuntimeError("stopped")
                self._changed.notify_all()
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _plan_phases(self, unit: MeasuredJobs) -> Iterator[list[Task]]:
        """Yield a unit's work in phases: measure granules in each pass, then produce blocks."""
        by_job: MeasuresByJob = {id(job): [] for job in unit.jobs}
        for number in range(len(unit.jobs[0].passes)):
            reducers: dict[str, _OrderedReducer] = {}
            yield list(self._plan_measuring(unit, number, by_job, reducers))
            sums = {key: reducer.join_measures() for key, reducer in reducers.items()}
            for job in unit.jobs:
                measures = by_job[id(job)]
                measures.append(sums[job.passes[number].key])
                measures[-1] = job.conclude(measures)
        yield list(self._plan_producing(unit, by_job))

    def _plan_measuring(
        self,
        unit: MeasuredJobs,
        number: int,
        by_job: MeasuresByJob,
        reducers: dict[str, _OrderedReducer],
    ) -> Iterator[Task]:
        """Yield a task for each granule that a pass has to measure, with its position in a reducer."""
        for job in unit.jobs:
            one_pass, measures = job.passes[number], by_job[id(job)]
            reducer = reducers.setdefault(one_pass.key, _OrderedReducer(one_pass.join))
            for index, rows in enumerate(_split_rows(job, self._choose_granule(job, number))):
                if job.needs_rows(rows, measures):
                    position = reducer.reserve()
                    yield functools.partial(
                        self._measure_granule, job, rows, index, measures, reducer, position
                    )

    def _choose_granule(self, job: TensorJob, number: int) -> int:
        """Return the number of elements that a pass measures at once."""
        granule, one_pass = self._limits.granule, job.passes[number]
        if one_pass.is_sparse and not self._limits.uses_gpu:
            return max(granule, job.spec.elements)
        return max(granule, _choose_block_size(job, self._limits)) if one_pass.is_exact else granule

    def _plan_producing(self, unit: MeasuredJobs, by_job: MeasuresByJob) -> Iterator[Task]:
        """Yield a task for each block to produce of the unit's tensors."""
        for job in unit.jobs_to_produce:
            pieces = list(_split_rows(job, _choose_block_size(job, self._limits)))
            left = _TaskCountdown(len(pieces))
            for rows in pieces:
                yield functools.partial(self._produce_block, job, rows, by_job[id(job)], left)
            if not pieces and self._finished is not None:
                self._finished(job)  # a tensor without rows

    def _measure_granule(
        self,
        job: TensorJob,
        rows: range,
        index: int,
        job_measures: Sequence[Measures],
        reducer: _OrderedReducer,
        position: int,
    ) -> None:
        # Measures ahead of a slow thread's would pile up in memory. The next position of a reducer was begun
        # before all that wait for it, so some thread always continues.
        self._wait_while(lambda: position > reducer.next + 4 * self._limits.workers)
        with self._streams.using_device() as device:
            measures = job.measure(rows, index, job_measures, device)
            if device != "cpu":
                measures = _move_to_cpu(measures)
        with self._changed:
            reducer.add(position, measures)
            self._changed.notify_all()
        reducer.join_some()

    def _produce_block(
        self, job: TensorJob, rows: range, job_measures: Sequence[Measures], left: _TaskCountdown
    ) -> None:
        with self._streams.using_device() as device:
            piece = job.produce(rows, job_measures, device)
            _require_fit(job, rows, piece)
        self._put(job, rows.start * job.grid[1], piece)
        with self._counting:
            self._produced_bytes += piece.nbytes
            if self._progress is not None:
                self._progress(self._produced_bytes, self._total_bytes, job.spec.name)
        if left.reaches_zero() and self._finished is not None:
            self._finished(job)

    def _start_next_phase(self, phases: Iterator[list[Task]]) -> None:
        """Submit the next phase of a unit that has any work, or count the unit as done."""
        for phase in phases:
            left = _TaskCountdown(len(phase))
            for work in phase:
                self._submit(functools.partial(self._run_task, work, left, phases))
            if phase:
                return
        with self._changed:
            self._active -= 1
            self._changed.notify_all()

    def _run_task(self, work: Task, left: _TaskCountdown, phases: Iterator[list[Task]]) -> None:
        work()
        if left.reaches_zero():
            self._start_next_phase(phases)

    def _submit(self, work: Task) -> None:
        def guarded() -> None:
            if self._error is not None:
                return
            try:
                work()
            except BaseException as error:
                with self._changed:
                    self._error = self._error or error
                    self._changed.notify_all()

        self._pool.submit(guarded)

    def _wait_while(self, busy: Callable[[], bool]) -> None:
        """Wait while a condition is true and no error has ended the work."""
        with self._changed:
            while busy() and self._error is None:
                self._changed.wait()


class _OrderedReducer:
    """Reducer that joins measures in the order of their positions, whatever the order of their arrival.

    Every 16 consecutive measures are joined by one thread at a time, and no other thread waits for that
    thread: positions are assigned while the scheduler's lock is held, and measures are joined after it is
    released.
    """

    def __init__(self, join: Callable[[Sequence[Measures]], Measures]) -> None:
        self._join = join
        self._early: dict[int, Measures] = {}
        self._ready: list[Measures] = []
        self._joined: list[Measures] = []
        self._joining = threading.Lock()
        self._reserved = 0
        self.next = 0

    def reserve(self) -> int:
        """Return the next free position."""
        self._reserved += 1
        return self._reserved - 1

    def add(self, position: int, measures: Measures) -> None:
        """Add the measures of a position; the caller must have the scheduler's lock."""
        self._early[position] = measures
        while self.next in self._early:
            self._ready.append(self._early.pop(self.next))
            self.next += 1

    def join_some(self) -> None:
        """Join consecutive measures if enough are ready and no other thread is joining."""
        while len(self._ready) >= _MEASURES_PER_JOIN and self._joining.acquire(blocking=False):
            try:
                self._join_next()
            finally:
                self._joining.release()

    def join_measures(self) -> Measures:
        """Return all measures joined, after all were added."""
        with self._joining:
            while len(self._ready) >= _MEASURES_PER_JOIN:
                self._join_next()
            return self._join([*self._joined, *self._ready])

    def _join_next(self) -> None:
        # Others only append meanwhile.
        oldest = self._ready[:_MEASURES_PER_JOIN]
        if len(oldest) == _MEASURES_PER_JOIN:
            self._joined = [self._join([*self._joined, *oldest])]
            del self._ready[:_MEASURES_PER_JOIN]


def _split_rows(job: TensorJob, elements: int) -> Iterator[range]:
    rows, width = job.grid
    step = max(1, rows) if job.whole else max(1, elements // max(1, width))
    for start in range(0, rows, step):
        yield range(start, min(rows, start + step))


def _require_fit(job: TensorJob, rows: range, piece: Tensor | np.ndarray) -> None:
    """Refuse a piece whose size or dtype differs from its spec, or whose numbers are not usable."""
    spec = job.spec
    expected = len(rows) * job.grid[1] * spec.itemsize
    dtype = str(piece.dtype).removeprefix("torch.")
    if piece.nbytes != expected or dtype not in (spec.dtype, "uint8"):
        raise CheckpointError(
            f"{spec.name}: rows {rows.start} to {rows.stop} take {expected} bytes in {spec.dtype}, and "
            f"{type(job).__name__} produced {piece.nbytes} in {dtype}; its author must correct it"
        )
    if isinstance(piece, np.ndarray):
        return
    kernels = job.kernels if isinstance(job, MergeJob) else None
    if piece.is_floating_point() and not is_usable(piece, kernels=kernels):
        raise CheckpointError(f"{spec.name}: {job.unusable}")


def _choose_block_size(job: TensorJob, limits: SchedulerLimits) -> int:
    """Return the number of elements to produce at once.

    All threads and the pieces that wait to be written take at most the memory of the limits.
    """
    each = max(1, job.row_bytes // max(1, job.grid[1]))
    by_kernels = isinstance(job, MergeJob) and job.kernels is not None
    fitting = max(1, (KERNEL_PRODUCED_BYTES if by_kernels else PRODUCED_BYTES) // each)
    if limits.memory is not None:
        bytes_left = limits.memory - count_queue_bytes(limits.memory)
        fitting = max(1, min(fitting, bytes_left // (limits.workers * each)))
    if limits.block is None:
        return fitting
    return limits.block if limits.memory is None else min(limits.block, fitting)


def count_queue_bytes(memory: int | None) -> int:
    """Return the most bytes that may wait to be written: at most a quarter of the memory."""
    return QUEUE if memory is None else min(QUEUE, memory // 4)


def _require_memory(jobs: Sequence[TensorJob], limits: SchedulerLimits) -> None:
    if limits.memory is None:
        return
    queued = count_queue_bytes(limits.memory)
    for job in jobs:
        need = job.row_bytes * job.grid[0] if job.whole else job.row_bytes
        if need + queued > limits.memory:
            # What waits to be written is named where the limit would do without it.
            queue_note = (
                "" if need > limits.memory else f" beside {format_size(queued)} to be written,"
            )
            raise CheckpointError(
                f"{job.spec.name}: needs {format_size(need)} at once{queue_note} and the limit is "
                f"{format_size(limits.memory)}; allow more with --memory, or give it another strategy by "
                "a rule"
            )


class DeviceStreams:
    """The devices of all threads; each thread has its own pinned buffers and stream on its GPU.

    While one thread waits for a copy or a result, the kernels of another thread run.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self._devices = itertools.cycle(devices)
        self._lock = threading.Lock()
        self._own = threading.local()

    @contextmanager
    def using_device(self) -> Iterator[str]:
        """Yield the calling thread's device, on whose stream the `with` block runs; wait for its work."""
        own = self._own
        if not hasattr(own, "device"):
            with self._lock:
                own.device = next(self._devices)
        if own.device == "cpu":
            yield own.device
            return
        import torch

        if not hasattr(own, "stream"):
            own.stream = torch.cuda.Stream(own.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(own.stream):
            yield own.device
            # The next call fills the pinned buffer again, so its copy must have ended.
            own.stream.synchronize()


def _move_to_cpu(measures: Any) -> Any:
    """Return measures, or one of them, with all tensors on the CPU."""
    if isinstance(measures, Mapping):
        return {name: _move_to_cpu(value) for name, value in measures.items()}
    return measures.cpu() if hasattr(measures, "cpu") else measures
