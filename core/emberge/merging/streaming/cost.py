"""Sizes of blocks and granules, and estimates of a merge's bytes and memory; loads no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from emberge.contracts import Machine, Stage, rows_of
from emberge.devices import count_usable_cores
from emberge.merging.merge_plan import MergePlan, TensorPlan
from emberge.numerics import kernels_found
from emberge.tensor_files import QUEUE

GRANULE = 1 << 19
"""Elements measured at once, on every machine, as another value changes the last bits of sums."""

PRODUCED = 12 << 20
"""Largest number of bytes of the rows that a thread produces at once.

More bytes do not fit into the caches; with fewer bytes, the calls cost more than the arithmetic.
"""

PRODUCED_BY_KERNELS = 48 << 20
"""The same for compiled kernels, which read a window of the rows at a time into the caches."""


def element_bytes(models: int, *, based: bool, itemsize: int, without_torch: bool = False) -> int:
    """Return the bytes of working memory per element, over all models.

    The memory contains the stacked models and a stage's copy of them and, with a base, the deltas and a copy
    of them. Without torch, kernels read the rows in windows: then it has the result and at most one decoded
    number for each model.
    """
    if without_torch:
        return itemsize * (models + 1)
    return itemsize * (3 * models + 6 if based else 2 * models + 4)


def block_elements(each: int, *, workers: int, memory: int | None, by_kernels: bool) -> int:
    """Return the number of elements to produce at once, at `each` bytes an element.

    All threads and the pieces that wait to be written take at most `memory` bytes.
    """
    target = (PRODUCED_BY_KERNELS if by_kernels else PRODUCED) // max(1, each)
    bytes_left = None if memory is None else memory - queue_bytes(memory)
    fitting_elements = target if bytes_left is None else bytes_left // (workers * max(1, each))
    return max(1, min(target, fitting_elements))


def queue_bytes(memory: int | None) -> int:
    """Return the most bytes that may wait to be written: at most a quarter of the memory."""
    return QUEUE if memory is None else min(QUEUE, memory // 4)


# Python with all that a run imports, with and without torch: memory in use before the first tensor.
_WITH_TORCH_BYTES, _WITHOUT_TORCH_BYTES = 180 << 20, 40 << 20


@dataclass(frozen=True, slots=True)
class CostForecast:
    """Bytes and memory of a merge on a CPU.

    `inputs` are the bytes of all tensors that are read; `read` counts each tensor as often as it is read.
    `memory` is the process's own memory at its peak, in bytes.
    """

    inputs: int
    read: int
    write: int
    memory: int
    workers: int


def forecast(plan: MergePlan, machine: Machine | None = None) -> CostForecast:
    """Estimate the costs of a plan without problems on a machine, by default this one with all its cores."""
    machine = machine or Machine(workers=count_usable_cores())
    costs = [_estimate_tensor(plan, tensor, machine) for tensor in plan.tensors]
    without_torch = all(_can_do_without_torch(plan, links) for links in plan.request.chains)
    return CostForecast(
        inputs=sum(cost.inputs for cost in costs),
        read=sum(cost.read for cost in costs),
        write=plan.bytes,
        memory=(_WITHOUT_TORCH_BYTES if without_torch else _WITH_TORCH_BYTES)
        + min(plan.bytes, queue_bytes(machine.memory))
        + max((cost.memory for cost in costs), default=0),
        workers=machine.workers,
    )


@dataclass(frozen=True, slots=True)
class _TensorCost:
    """Costs of one tensor in bytes: stored in its inputs, read in all passes, and in all threads' memory."""

    inputs: int
    read: int
    memory: int


def _estimate_tensor(plan: MergePlan, tensor: TensorPlan, machine: Machine) -> _TensorCost:
    if tensor.action == "copy":
        size = tensor.out.nbytes * (1 + sum(spec is not None for spec in tensor.sources))
        return _TensorCost(size, size, min(tensor.out.nbytes, PRODUCED) * machine.workers)
    links = plan.request.chains[plan.request.chain_of(tensor.name)]
    base = tensor.base if any(link.base_policy != "forbidden" for link in links) else None
    sizes = list(_list_source_sizes(plan, tensor))
    inputs = sum(sizes) + (base.nbytes if base is not None else 0)
    read = round(inputs * (1 + sum(link.expected_readings for link in links)))
    memory = _estimate_memory(plan, tensor, len(sizes), machine, based=base is not None)
    return _TensorCost(inputs, read, memory)


def _can_do_without_torch(plan: MergePlan, links: Sequence[Stage]) -> bool:
    """Return whether compiled kernels do all the work of a chain."""
    by_kernels = plan.request.dtype == "float32" and kernels_found()
    return by_kernels and not any(link.needs_torch for link in links)


def _estimate_memory(
    plan: MergePlan, tensor: TensorPlan, models: int, machine: Machine, *, based: bool
) -> int:
    """Return the bytes that all threads together need for a tensor of this many models."""
    links = plan.request.chains[plan.request.chain_of(tensor.name)]
    without_torch = _can_do_without_torch(plan, links)
    each = element_bytes(models, based=based, itemsize=4, without_torch=without_torch)
    elements, width = tensor.out.elements, rows_of(tensor.out.shape)[1]
    if any(link.whole for link in links):
        equal_tensors = sum(other.out.elements == elements for other in plan.tensors)
        return elements * each * min(machine.workers, equal_tensors)
    block = block_elements(
        each,
        workers=machine.workers,
        memory=machine.memory,
        by_kernels=kernels_found(),
    )
    granule_elements = GRANULE if any(link.passes for link in links) else 0
    if without_torch:
        # The result as it is stored, and what a pass collects near limits.
        each = tensor.out.nbytes // max(1, elements) + (2 if granule_elements else 0)
    measures = round(elements * models * sum(link.measure_bytes for link in links))
    return measures + machine.workers * each * min(elements, max(width, block, granule_elements))


def _list_source_sizes(plan: MergePlan, tensor: TensorPlan) -> Iterator[int]:
    """Yield the tensor's bytes in each model; a model that does not exist yet is like the result."""
    for model, spec in zip(plan.request.inputs, tensor.sources, strict=True):
        if spec is not None:
            yield spec.nbytes
        elif model.name in plan.future_models:
            yield tensor.out.nbytes
