"""What the machine offers: devices, workers, memory and disk. It decides the speed and never the bytes."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from emberge.contracts.step import Machine
from emberge.errors import EmbergeError, RecipeError

__all__ = [
    "check_space",
    "dtype_for",
    "find_machine",
    "human_size",
    "memory_here",
    "parse_size",
    "torch_threads",
]

_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
# Device files of CUDA, of CUDA under Windows' Linux, and of ROCm: without one, torch need not be asked.
_ACCELERATOR_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


def find_machine(
    devices: str | None = None, workers: int | None = None, memory: str | int | None = None
) -> Machine:
    """What this machine offers, or the part of it that is named.

    `devices` is `cpu`, `cuda` (all of them), `cuda:0,cuda:1` or None for all CUDA devices if there are any;
    `workers` defaults to the usable cores; `memory` is bytes or a size such as `512MB` or `2GiB`.

    Raises:
        RecipeError: for a device that is not there, no workers, or a size that is none.
    """
    if workers is not None and workers < 1:
        raise RecipeError(f"--workers {workers}: at least one worker is needed")
    return Machine(
        devices=_devices(devices),
        workers=workers or usable_cores(),
        memory=parse_size(memory) if isinstance(memory, str) else memory,
    )


def usable_cores() -> int:
    """Cores this process may use: its affinity, held to a container's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text("utf-8").split()
        count = min(count or 1, -(-int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no cgroup, or `max`: no quota
    return max(1, count or 1)


def memory_here() -> int:
    """Bytes of memory that this machine has, held to a container's limit."""
    count = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(count, int(Path("/sys/fs/cgroup/memory.max").read_text("utf-8")))
    except (OSError, ValueError):
        return count  # no cgroup, or `max`: no limit


def parse_size(text: str) -> int:
    """Bytes of `512MB`, `2GiB`, `1.5g` or `1000`.

    Raises:
        RecipeError: for anything else.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]?i?)b?\s*", text.lower())
    if match is None or match[2] not in _UNITS or float(match[1]) <= 0:
        raise RecipeError(f"'{text}' is no size; write it as 512MB or 2GiB")
    return int(float(match[1]) * _UNITS[match[2]])


def human_size(count: float) -> str:
    """Bytes as a person reads them: `1.3 GB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def dtype_for(device: str) -> str:
    """The dtype to train in on a device: bfloat16 where it is fast, else float32."""
    if not device.startswith("cuda"):
        return "float32"
    import torch

    with torch.cuda.device(torch.device(device)):
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads inside, and as many as before afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_space(folder: Path, bytes_needed: int) -> None:
    """Make sure that the disk of `folder` (which need not exist yet) has room.

    Raises:
        EmbergeError: with what is needed and what is free.
    """
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if bytes_needed > free:
        raise EmbergeError(
            f"{folder}: needs {human_size(bytes_needed)} of disk, and {human_size(free)} are free; "
            "make room or choose another --out"
        )


def _devices(wanted: str | None) -> tuple[str, ...]:
    if wanted == "cpu":
        return ("cpu",)
    if wanted is None and not any(Path(file).exists() for file in _ACCELERATOR_FILES):
        return ("cpu",)
    import torch

    cuda = tuple(f"cuda:{i}" for i in range(torch.cuda.device_count()))
    if wanted is None:
        return cuda or ("cpu",)
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    known = ("cpu", *cuda)
    found = [d for name in names for d in (cuda if name == "cuda" else (name,))]
    unknown = [name for name in found if name not in known]
    if unknown or not found:
        raise RecipeError(
            f"--devices {wanted}: {', '.join(unknown) or 'no such device'} is not here; "
            f"this machine has {', '.join(known)}"
        )
    return tuple(dict.fromkeys(found))
