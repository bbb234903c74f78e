"""The scheduler: threads measure and produce the jobs of a few units at a time, in bounded memory."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from emberge.contracts import Machine, Measures
from emberge.devices import limit_torch_threads
from emberge.errors import CheckpointError
from emberge.interpreter import keep_freed_blocks
from emberge.merging.streaming.jobs import TensorJob, announce_reads, is_usable
from emberge.tensor_files import QUEUE_BYTES
from emberge.wording import format_size

if TYPE_CHECKING:
    from torch import Tensor

PutPiece = Callable[[TensorJob, int, "Tensor | np.ndarray"], None]
Progress = Callable[[float, float, str], None]
Task = Callable[[str], None]
"""Work that a thread does on a device, such as "cpu" or "cuda:0"."""
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
    for each job. Workers share the GPUs; without any, they compute on the CPU.
    """

    workers: int = 1
    memory: int | None = None
    gpus: tuple[str, ...] = ()
    block: int | None = None
    granule: int = GRANULE_ELEMENTS

    @classmethod
    def of(cls, machine: Machine) -> SchedulerLimits:
        """Return a machine's limits, with at least two threads a GPU: one copies while one computes."""
        gpus = tuple(device for device in machine.devices if device != "cpu")
        return cls(max(1, machine.workers, 2 * len(gpus)), machine.memory, gpus)


@dataclass(slots=True, eq=False)
class _Unit:
    """Jobs that are measured together, those among them to produce, and the state of their work.

    `measures` and `blocks_left` are by id of a job: the measures of its finished passes, and the number of
    its blocks that are not yet produced. `tasks_left` counts the unfinished tasks of the current phase.
    """

    jobs: Sequence[TensorJob]
    jobs_to_produce: Sequence[TensorJob]
    measures: dict[int, list[Measures]] = field(default_factory=dict)
    blocks_left: dict[int, int] = field(default_factory=dict)
    phases: Iterator[list[Task]] = field(init=False)
    tasks_left: int = 0


def run_jobs(
    jobs: Sequence[TensorJob],
    put: PutPiece,
    *,
    limits: SchedulerLimits,
    finished: Callable[[TensorJob], None] | None = None,
    progress: Progress | None = None,
    done: Collection[str] = (),
) -> None:
    """Measure and produce the jobs, unit by unit, and `put` each piece (job, first element, tensor).

    Tensors whose names are in `done` are not produced, and only measured if their unit has others. Tensors on
    servers are fetched ahead; an error ends these requests.

    Raises:
        CheckpointError: if inputs are damaged or not finite, or need more memory than the limit.
    """
    jobs_by_unit: dict[str, list[TensorJob]] = {}
    for job in jobs:
        jobs_by_unit.setdefault(job.unit, []).append(job)
    units = []
    for unit_jobs in jobs_by_unit.values():
        if jobs_to_produce := [job for job in unit_jobs if job.spec.name not in done]:
            units.append(_Unit(unit_jobs, jobs_to_produce))
    jobs_at_work = [job for unit in units for job in unit.jobs]
    limits = _limit_workers(jobs_at_work, limits)
    keep_freed_blocks()
    needs_torch = bool(limits.gpus) or any(job.needs_torch for job in jobs_at_work)
    with (
        # As in `_prepare_thread`, since this thread plans the first phase of each unit.
        np.errstate(all="ignore"),
        # Sums must not depend on how many threads torch would split them over; workers are threads already.
        limit_torch_threads(1) if needs_torch else nullcontext(),
        ThreadPoolExecutor(limits.workers, "merge", _prepare_thread, (needs_torch,)) as pool,
    ):
        scheduler = _TensorScheduler(pool, limits, put, finished, progress)
        scheduler.run(units, announce_reads(jobs_at_work))


def _prepare_thread(needs_torch: bool) -> None:
    """Let the calling thread work with arrays and tensors, alone and without gradients.

    NumPy does not warn of what is not finite, as torch does not: rows and results are checked.
    """
    np.seterr(all="ignore")
    if needs_torch:
        import torch

        torch.set_num_threads(1)
        torch.set_grad_enabled(False)


class _TensorScheduler:
    """Threads that work on the granules of a few units at a time.

    The work of a unit is a generator of phases (`_plan_phases`). Any threads do the tasks of one phase; the
    thread that finishes the phase's last task takes the next phase from the generator.
    """

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        limits: SchedulerLimits,
        put: PutPiece,
        finished: Callable[[TensorJob], None] | None,
        progress: Progress | None,
    ) -> None:
        self._pool, self._limits, self._put, self._finished = pool, limits, put, finished
        self._progress, self._produced_bytes, self._total_bytes = progress, 0, 0
        self._counting = threading.Lock()
        self._changed = threading.Condition(threading.RLock())
        self._active_units = 0
        self._error: BaseException | None = None
        self._streams = DeviceStreams(limits.gpus) if limits.gpus else None

    def run(self, units: Sequence[_Unit], end_requests: Callable[[], None]) -> None:
        """Run all units, several at once to keep threads busy; raise the first error.

        After an error `end_requests` is called before the threads are joined, as they may wait for a server.
        """
        self._total_bytes = sum(job.spec.nbytes for unit in units for job in unit.jobs_to_produce)
        try:
            for unit in units:
                self._wait_while(lambda: self._active_units > self._limits.workers)
                if self._error is not None:
                    break
                with self._changed:
                    self._active_units += 1
                unit.phases = self._plan_phases(unit)
                self._start_next_phase(unit)
            self._wait_while(lambda: self._active_units > 0)
            if self._error is not None:
                raise self._error
        except BaseException:
            end_requests()
            raise
        finally:
            with self._changed:
                self._error = self._error or RuntimeError("stopped")
                self._changed.notify_all()
            self._pool.shutdown(wait=True, cancel_futures=True)

    def _plan_phases(self, unit: _Unit) -> Iterator[list[Task]]:
        """Yield a unit's tasks in phases: measure granules in each pass, then produce blocks."""
        unit.measures = {id(job): [] for job in unit.jobs}
        for number in range(len(unit.jobs[0].passes)):
            reducers: dict[str, _OrderedReducer] = {}
            yield list(self._plan_measuring(unit, number, reducers))
            sums = {key: reducer.join_measures() for key, reducer in reducers.items()}
            for job in unit.jobs:
                measures = unit.measures[id(job)]
                measures.append(sums[job.passes[number].key])
                measures[-1] = job.conclude(measures)
        yield list(self._plan_producing(unit))

    def _plan_measuring(
        self, unit: _Unit, number: int, reducers: dict[str, _OrderedReducer]
    ) -> Iterator[Task]:
        """Yield a task for each granule that a pass has to measure, with its position in a reducer."""
        for job in unit.jobs:
            one_pass, measures = job.passes[number], unit.measures[id(job)]
            if one_pass.key not in reducers:
                reducers[one_pass.key] = _OrderedReducer(one_pass.join, self._changed)
            reducer, granule = reducers[one_pass.key], self._limits.granule
            if one_pass.is_sparse and not self._limits.gpus:
                granule = max(granule, job.spec.elements)
            elif one_pass.is_exact:
                granule = max(granule, _choose_block_size(job, self._limits))
            for index, rows in enumerate(_split_rows(job, granule)):
                if job.needs_rows(rows, measures):
                    position = next(reducer.free_positions)
                    yield functools.partial(
                        self._measure_granule, job, rows, index, measures, reducer, position
                    )

    def _plan_producing(self, unit: _Unit) -> Iterator[Task]:
        """Yield a task for each block to produce of the unit's tensors."""
        for job in unit.jobs_to_produce:
            blocks = list(_split_rows(job, _choose_block_size(job, self._limits)))
            unit.blocks_left[id(job)] = len(blocks)
            for rows in blocks:
                yield functools.partial(self._produce_block, unit, job, rows)
            if not blocks and self._finished is not None:
                self._finished(job)  # a tensor without rows

    def _measure_granule(
        self,
        job: TensorJob,
        rows: range,
        index: int,
        job_measures: Sequence[Measures],
        reducer: _OrderedReducer,
        position: int,
        device: str,
    ) -> None:
        """Add a granule's measures to the reducer, after waiting for a slower thread if need be."""
        # Measures ahead of a slow thread's would pile up in memory. The next position of a reducer was begun
        # before all that wait for it, so some thread always continues.
        self._wait_while(lambda: position > reducer.next + 4 * self._limits.workers)
        measures = job.measure(rows, index, job_measures, device)
        reducer.add(position, measures if device == "cpu" else _move_to_cpu(measures))

    def _produce_block(self, unit: _Unit, job: TensorJob, rows: range, device: str) -> None:
        """Produce rows of a tensor and put them; after the tensor's last block report it as finished."""
        piece = job.produce(rows, unit.measures[id(job)], device)
        _require_fit(job, rows, piece)
        self._put(job, rows.start * job.grid[1], piece)
        with self._counting:
            self._produced_bytes += piece.nbytes
            if self._progress is not None:
                self._progress(self._produced_bytes, self._total_bytes, job.spec.name)
            unit.blocks_left[id(job)] -= 1
            is_finished = unit.blocks_left[id(job)] == 0
        if is_finished and self._finished is not None:
            self._finished(job)

    def _start_next_phase(self, unit: _Unit) -> None:
        """Submit the tasks of the unit's next phase that has any, or count the unit as done."""
        for tasks in unit.phases:
            unit.tasks_left = len(tasks)
            for task in tasks:
                self._pool.submit(self._run_task, unit, task)
            if tasks:
                return
        with self._changed:
            self._active_units -= 1
            self._changed.notify_all()

    def _run_task(self, unit: _Unit, task: Task) -> None:
        """Run a task unless the work has failed, and start the next phase after the last task of one."""
        if self._error is not None:
            return
        try:
            streams = self._streams
            with nullcontext("cpu") if streams is None else streams.using_device() as device:
                task(device)
            with self._changed:
                unit.tasks_left -= 1
                is_last = unit.tasks_left == 0
            if is_last:
                self._start_next_phase(unit)
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()

    def _wait_while(self, busy: Callable[[], bool]) -> None:
        """Wait while a condition is true and no error has ended the work."""
        with self._changed:
            while busy() and self._error is None:
                self._changed.wait()


class _OrderedReducer:
    """Reducer that joins measures in the order of their positions, whatever the order of their arrival.

    Every 16 consecutive measures are joined by one thread at a time, and no other thread waits for that
    thread: the order is made while the lock of `changed` is held, and measures are joined after it is
    released. `next` is the first position without measures.
    """

    def __init__(
        self, join: Callable[[Sequence[Measures]], Measures], changed: threading.Condition
    ) -> None:
        self._join, self._changed = join, changed
        self._early: dict[int, Measures] = {}
        self._ready: list[Measures] = []
        self._joined: list[Measures] = []
        self._joining = threading.Lock()
        self.free_positions = itertools.count()
        self.next = 0

    def add(self, position: int, measures: Measures) -> None:
        """Add the measures of a position; join consecutive ones if enough are ready and no thread does."""
        with self._changed:
            self._early[position] = measures
            while self.next in self._early:
                self._ready.append(self._early.pop(self.next))
                self.next += 1
            self._changed.notify_all()
        while len(self._ready) >= _MEASURES_PER_JOIN and self._joining.acquire(blocking=False):
            try:
                # Another thread may have joined them since; while this one joins, others only append.
                if len(oldest := self._ready[:_MEASURES_PER_JOIN]) == _MEASURES_PER_JOIN:
                    self._joined = [self._join([*self._joined, *oldest])]
                    del self._ready[:_MEASURES_PER_JOIN]
            finally:
                self._joining.release()

    def join_measures(self) -> Measures:
        """Return all measures joined, after every `add` has returned."""
        return self._join([*self._joined, *self._ready])


def _split_rows(job: TensorJob, elements: int) -> Iterator[range]:
    """Yield consecutive ranges of a tensor's rows, each of at most `elements`, and of at least one row."""
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
    if piece.is_floating_point() and not is_usable(piece, kernels=job.kernels):
        raise CheckpointError(f"{spec.name}: {job.unusable}")


def _choose_block_size(job: TensorJob, limits: SchedulerLimits) -> int:
    """Return how many elements to produce at once, so that the pieces of all threads fit into the memory."""
    element_bytes = max(1, job.row_bytes // max(1, job.grid[1]))
    produced_bytes = PRODUCED_BYTES if job.kernels is None else KERNEL_PRODUCED_BYTES
    fitting = max(1, produced_bytes // element_bytes)
    if limits.memory is not None:
        bytes_left = limits.memory - count_queue_bytes(limits.memory)
        fitting = max(1, min(fitting, bytes_left // (limits.workers * element_bytes)))
    if limits.block is None:
        return fitting
    return limits.block if limits.memory is None else min(limits.block, fitting)


def count_queue_bytes(memory: int | None) -> int:
    """Return the most bytes that may wait to be written: at most a quarter of the memory."""
    return QUEUE_BYTES if memory is None else min(QUEUE_BYTES, memory // 4)


def _limit_workers(jobs: Sequence[TensorJob], limits: SchedulerLimits) -> SchedulerLimits:
    """Return the limits with as many workers as can each produce the largest of the jobs' smallest pieces.

    Raises:
        CheckpointError: if one such piece needs more memory than the limit.
    """
    if (memory := limits.memory) is None:
        return limits
    queued, workers = count_queue_bytes(memory), limits.workers
    for job in jobs:
        need = job.row_bytes * job.grid[0] if job.whole else job.row_bytes
        if need + queued > memory:
            # What waits to be written is named where the limit would do without it.
            queue_note = "" if need > memory else f" beside {format_size(queued)} to be written,"
            raise CheckpointError(
                f"{job.spec.name}: needs {format_size(need)} at once{queue_note} and the limit is "
                f"{format_size(memory)}; allow more with --memory, or give it another strategy by "
                "a rule"
            )
        workers = min(workers, (memory - queued) // max(1, need))
    return replace(limits, workers=workers)


class DeviceStreams:
    """The GPUs of all threads; each thread has its own pinned buffers and stream on its GPU.

    While one thread waits for a copy or a result, the kernels of another thread run.
    """

    def __init__(self, gpus: Sequence[str]) -> None:
        self._gpus = itertools.cycle(gpus)
        self._lock = threading.Lock()
        self._of_thread = threading.local()

    @contextmanager
    def using_device(self) -> Iterator[str]:
        """Yield the calling thread's GPU, on whose stream the `with` block runs; wait for its work."""
        import torch

        of_thread = self._of_thread
        if not hasattr(of_thread, "gpu"):
            with self._lock:
                of_thread.gpu = next(self._gpus)
            of_thread.stream = torch.cuda.Stream(of_thread.gpu)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(of_thread.stream):
            yield of_thread.gpu
            # The next call fills the pinned buffer again, so its copy must have ended.
            of_thread.stream.synchronize()


def _move_to_cpu(measures: Any) -> Any:
    """Return measures, or one of them, with all tensors on the CPU."""
    if isinstance(measures, Mapping):
        return {name: _move_to_cpu(value) for name, value in measures.items()}
    return measures.cpu() if hasattr(measures, "cpu") else measures
