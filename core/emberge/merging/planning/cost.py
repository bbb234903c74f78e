"""What a merge will cost: bytes, memory and seconds, from headers and the runner's own arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge.contracts.block import rows_of
from emberge.contracts.step import Machine
from emberge.devices import usable_cores
from emberge.merging.streaming.memory_budget import GRANULE, PRODUCED, block_elements, element_bytes

if TYPE_CHECKING:
    from emberge.merging.planning.match_tensors import TensorPlan
    from emberge.merging.planning.plan_merge import MergePlan

__all__ = ["Forecast", "forecast"]

# Python with torch and what a run imports: it is there before the first tensor.
_PROGRAM = 180 << 20
_START = 2.5  # seconds until it is, on a core that has nothing else to do
# Core seconds a byte of reading from the page cache and converting, and of writing.
_READ, _WRITE = 0.5e-9, 0.9e-9
# Core seconds a multiply-add of what a stage does to whole matrices, in float64.
_WHOLE = 1.5e-9


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is to be expected on a CPU whose disk is no slower than its cache.

    `inputs` are the bytes of all tensors that are read, `read` counts each as often as it is read; `memory`
    is the process's own at its peak, in bytes.
    """

    inputs: int
    read: int
    write: int
    memory: int
    seconds: float
    workers: int


def forecast(plan: MergePlan, machine: Machine | None = None) -> Forecast:
    """What a plan without problems will cost on a machine, by default this one with all of its cores."""
    machine = machine or Machine(workers=usable_cores())
    costs = [_cost(plan, tensor, machine) for tensor in plan.tensors]
    work = sum(cost.seconds for cost in costs)
    return Forecast(
        inputs=sum(cost.inputs for cost in costs),
        read=sum(cost.read for cost in costs),
        write=plan.bytes,
        memory=_PROGRAM + max((cost.memory for cost in costs), default=0),
        seconds=_START + work / machine.workers,
        workers=machine.workers,
    )


@dataclass(frozen=True, slots=True)
class _Cost:
    """One tensor's: bytes in its inputs, bytes read, bytes held by all threads, seconds of one core."""

    inputs: int
    read: int
    memory: int
    seconds: float


def _cost(plan: MergePlan, tensor: TensorPlan, machine: Machine) -> _Cost:
    if tensor.action == "copy":
        size = tensor.out.nbytes * (1 + sum(spec is not None for spec in tensor.sources))
        held = min(tensor.out.nbytes, PRODUCED) * machine.workers
        return _Cost(size, size, held, size * _READ + tensor.out.nbytes * _WRITE)
    links = plan.request.chains[plan.request.chain_of(tensor.name)]
    base = tensor.base if any(link.base_policy != "forbidden" for link in links) else None
    sizes = list(_sizes(plan, tensor))
    inputs = sum(sizes) + (base.nbytes if base is not None else 0)
    read = round(inputs * (1 + sum(link.expected_readings for link in links)))
    each = element_bytes(len(sizes), based=base is not None, itemsize=4)
    work, held = _work(plan, tensor, len(sizes)), _held(plan, tensor, each, machine)
    return _Cost(inputs, read, held, read * _READ + work + tensor.out.nbytes * _WRITE)


def _work(plan: MergePlan, tensor: TensorPlan, models: int) -> float:
    links = plan.request.chains[plan.request.chain_of(tensor.name)]
    elements, (rows, width) = tensor.out.elements, rows_of(tensor.out.shape)
    seconds = models * elements * sum(link.nanoseconds for link in links) * 1e-9
    if any(link.whole for link in links) and rows > 1:
        seconds += (models + 1) * elements * min(rows, width) * _WHOLE
    return seconds


def _held(plan: MergePlan, tensor: TensorPlan, each: int, machine: Machine) -> int:
    """Bytes of a tensor's elements that all threads hold, `each` being those of an element."""
    links = plan.request.chains[plan.request.chain_of(tensor.name)]
    elements, width = tensor.out.elements, rows_of(tensor.out.shape)[1]
    if any(link.whole for link in links):
        alike = sum(other.out.elements == elements for other in plan.tensors)
        return elements * each * min(machine.workers, alike)
    block = block_elements(each, workers=machine.workers, memory=machine.memory)
    measured = GRANULE if any(link.passes for link in links) else 0
    return machine.workers * each * min(elements, max(width, block, measured))


def _sizes(plan: MergePlan, tensor: TensorPlan) -> Iterator[int]:
    """Bytes of the tensor in each model; one that was not seen yet is like the result."""
    for model, spec in zip(plan.request.inputs, tensor.sources, strict=True):
        if spec is not None:
            yield spec.nbytes
        elif model.name in plan.unseen:
            yield tensor.out.nbytes
