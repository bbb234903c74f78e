"""Memory for activations of a backward pass: it decides the speed and never the bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

# Other trainings may run beside this one on a CPU; a GPU is one training's alone.
CPU_SHARE = 0.25
GPU_SHARE = 0.6
# Gradient and two moments of AdamW, float32.
BYTES_A_PARAMETER = 12


def activation_budget(module: nn.Module, device: torch.device, beside: int = 1) -> int:
    """Return the bytes that activations may take: a share of what gradients and moments leave free.

    On a CPU `beside` ranks share the memory.
    """
    later = BYTES_A_PARAMETER * sum(_local_size(p) for p in module.parameters())
    if device.type == "cuda":
        free, share = torch.cuda.mem_get_info(device)[0], GPU_SHARE
    else:
        free, share = _available() // beside, CPU_SHARE
    return max(0, int((free - later) * share))


def _local_size(parameter: Tensor) -> int:
    """Return how many numbers of a parameter this rank has: all, unless ranks share it."""
    local = getattr(parameter, "to_local", None)
    return (local() if local is not None else parameter).numel()


def _available() -> int:
    amounts = []
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        amounts.append(int(line.split()[1]) * 1024)
    with contextlib.suppress(OSError, ValueError):  # a container's own limit
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text("utf-8"))
        amounts.append(limit - int((group / "memory.current").read_text("utf-8")))
    return min(amounts, default=2**31)


def _storages(module: nn.Module) -> Iterator[torch.UntypedStorage]:
    for parameter in module.parameters():
        local = getattr(parameter, "to_local", None)
        yield (local() if local is not None else parameter).untyped_storage()


@contextlib.contextmanager
def saved_bytes(module: nn.Module) -> Iterator[list[int]]:
    """Count into `found[0]` the bytes that the forward passes inside save for their backward pass."""
    known = {storage.data_ptr() for storage in _storages(module)}
    found = [0]

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            known.add(storage.data_ptr())
            found[0] += storage.nbytes()
        return tensor.detach()  # returning an output itself would make a cycle

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield found
