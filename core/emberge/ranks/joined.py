"""How a process finds the other ranks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]

from emberge.ranks.ranks import PATIENCE, Ranks, RanksError

__all__ = ["join_ranks", "leave_ranks"]


def join_ranks(device: str = "cpu") -> Ranks:
    """The process's ranks, as `torchrun`, `accelerate launch` or `emberge run --ranks` have set them up.

    They are told by RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; without them, or alone, there
    is one rank. `device` is a kind or one device; each rank on a machine takes the GPU of its number.

    Raises:
        RanksError: when the ranks do not find each other.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return Ranks(device=device)
    if not _JOINED:
        _JOINED.append(_join(device))
    return _JOINED[0]


# A process has one group of ranks.
_JOINED: list[Ranks] = []


def _join(device: str) -> Ranks:
    from accelerate import PartialState

    on_gpu = device.startswith("cuda")
    if device == "cuda":
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    try:
        store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
        if on_gpu:
            torch.cuda.set_device(torch.device(device))
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
            store=PrefixStore("group", store),
            rank=rank,
            world_size=size,
            timeout=PATIENCE,
        )
    except (dist.DistError, RuntimeError, OSError, ValueError, KeyError) as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise RanksError(
            f"rank {os.environ.get('RANK', '?')} of {os.environ['WORLD_SIZE']} does not find the others "
            f"({line}); look at MASTER_ADDR, MASTER_PORT and RANK"
        ) from error
    with _threads_kept():
        PartialState(cpu=not on_gpu)
    if on_gpu:
        torch.cuda.set_device(torch.device(device))  # accelerate knows no choice of devices
    return Ranks(rank, size, device, PrefixStore("emberge", store))


@contextlib.contextmanager
def _threads_kept() -> Iterator[None]:
    """Keep accelerate from setting torch's threads: the engine does, and a given OMP_NUM_THREADS stops it."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = before or str(torch.get_num_threads())
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]


def leave_ranks() -> None:
    """Let go of the other ranks; at the end of a process."""
    if dist.is_initialized():
        dist.destroy_process_group()
        _JOINED.clear()
