"""Devices, cores and memory of this machine, which decide a run's speed but never the bytes of its result."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from emberge.contracts import Machine
from emberge.errors import RecipeError

# Device files of CUDA, of CUDA under Windows' Linux, and of ROCm: if none exists, torch is not
# imported to search for devices.
_ACCELERATOR_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
# Bytes of a unit in a size: decimal, or binary with an i.
_BYTES_BY_UNIT = {
    **{unit: 1000**power for power, unit in enumerate(("", "k", "m", "g", "t"))},
    **{f"{unit}i": 1024**power for power, unit in enumerate(("k", "m", "g", "t"), 1)},
}


def find_machine(
    devices: str | None = None, workers: int | None = None, memory: str | int | None = None
) -> Machine:
    """Return the devices, workers and memory that a run may use: by default, the whole machine.

    `devices` is `cpu`, `cuda` (all CUDA devices), `cuda:0,cuda:1`, or None (all CUDA devices, or `cpu`
    without any); `workers` defaults to the usable cores; `memory` is bytes or a size such as `512MB` or
    `2GiB`.

    Raises:
        RecipeError: if a device does not exist, `workers` is below 1, or `memory` is not a size.
    """
    if workers is not None and workers < 1:
        raise RecipeError(f"--workers {workers}: at least one worker is needed")
    return Machine(
        devices=_find_devices(devices),
        workers=workers or count_usable_cores(),
        memory=parse_size(memory) if isinstance(memory, str) else memory,
    )


def parse_size(size: str | int) -> int:
    """Return the bytes that `512MB`, `2GiB`, `1.5g` or `1000` names.

    Raises:
        RecipeError: if the text is not a size.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]?i?)b?\s*", str(size).lower())
    if match is None or match[2] not in _BYTES_BY_UNIT or float(match[1]) <= 0:
        raise RecipeError(f"'{size}' is no size; write it as 512MB or 2GiB")
    return int(float(match[1]) * _BYTES_BY_UNIT[match[2]])


def count_usable_cores() -> int:
    """Return the number of cores that this process may use, by its affinity and a container's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text("utf-8").split()
        count = min(count or 1, -(-int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no cgroup, or `max`: no quota
    return max(1, count or 1)


def measure_memory() -> int:
    """Return the bytes of memory that this machine, or its container, has."""
    count = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(count, int(Path("/sys/fs/cgroup/memory.max").read_text("utf-8")))
    except (OSError, ValueError):
        return count  # no cgroup, or `max`: no limit


def read_available_memory() -> int:
    """Return the bytes of memory that are free on this machine, or in its container; 2 GiB if unknown."""
    amounts = []
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        amounts.append(int(line.split()[1]) * 1024)
    with suppress(OSError, ValueError):  # a container's own limit
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text("utf-8"))
        amounts.append(limit - int((group / "memory.current").read_text("utf-8")))
    return min(amounts, default=2**31)


def has_bfloat16_instructions() -> bool:
    """Return whether this machine's processor multiplies bfloat16 by itself; False if it cannot be told."""
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(_read_processor_flags())


def _read_processor_flags() -> list[str]:
    """Return the words for what the first processor can do; none if /proc/cpuinfo does not tell."""
    with suppress(OSError):  # not Linux
        flags = re.search(
            r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE
        )
        return flags[1].split() if flags else []
    return []


def choose_training_dtype(device: str, *, allows_bfloat16: bool = False) -> str:
    """Return the dtype to train in on a device: bfloat16 where it is fast, else float32.

    A processor trains in float32, or in bfloat16 if the caller `allows_bfloat16` and it multiplies that.
    """
    if not device.startswith("cuda"):
        return "bfloat16" if allows_bfloat16 and has_bfloat16_instructions() else "float32"
    import torch

    with torch.cuda.device(torch.device(device)):
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"


@contextmanager
def limit_torch_threads(count: int) -> Iterator[None]:
    """Let torch use `count` threads in the block; restore the previous number at its end."""
    import torch

    previous_count = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(previous_count)


def _find_devices(requested: str | None) -> tuple[str, ...]:
    if requested == "cpu":
        return ("cpu",)
    if requested is None and not any(Path(file).exists() for file in _ACCELERATOR_FILES):
        return ("cpu",)
    import torch

    cuda = tuple(f"cuda:{i}" for i in range(torch.cuda.device_count()))
    if requested is None:
        return cuda or ("cpu",)
    names = [name.strip() for name in requested.split(",") if name.strip()]
    existing_devices = ("cpu", *cuda)
    devices = [d for name in names for d in ((name == "cuda" and cuda) or (name,))]
    unknown = [name for name in devices if name not in existing_devices]
    if unknown or not devices:
        hint = "; a GPU is written cuda or cuda:0" if "gpu" in requested.lower() else ""
        raise RecipeError(
            f"--devices {requested}: {', '.join(unknown) or 'no device'} is not here; this "
            f"machine has {', '.join(existing_devices)}{hint}"
        )
    return tuple(dict.fromkeys(devices))
