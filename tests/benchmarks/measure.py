"""Run a command and measure it: wall, CPU, the most memory of its own that it ever held; and the machine."""

from __future__ import annotations

import os
import platform
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from emberge.devices import count_usable_cores


@dataclass(frozen=True)
class Cost:
    """Seconds, and bytes of anonymous (`RssAnon`) and total resident memory at their peaks."""

    wall: float
    cpu: float
    anonymous: int
    resident: int


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Cost:
    """Run a command to its end and return its cost, children's CPU time included.

    Raises:
        RuntimeError: with the end of its output, when it fails.
    """
    start = time.perf_counter()
    with open(f"/tmp/measure-{os.getpid()}.log", "w+b") as log:
        process = subprocess.Popen(
            # Everybody's modules come compiled, as they do after a first run.
            command,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "", **(environment or {})},
        )
        peak = {"RssAnon": 0, "VmHWM": 0}
        done = threading.Event()
        watcher = threading.Thread(target=_watch, args=(process.pid, peak, done))
        watcher.start()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        done.set()
        watcher.join()
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            log.seek(0)
            tail = log.read().decode(errors="replace")[-2000:]
            raise RuntimeError(
                f"{' '.join(command[:4])} … ended with {process.returncode}:\n{tail}"
            )
    return Cost(wall, usage.ru_utime + usage.ru_stime, peak["RssAnon"], peak["VmHWM"])


def median(costs: Sequence[Cost]) -> Cost:
    """The cost whose wall time is the median."""
    return sorted(costs, key=lambda cost: cost.wall)[(len(costs) - 1) // 2]


def _watch(pid: int, peak: dict[str, int], done: threading.Event) -> None:
    while not done.wait(0.02):
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            return
        for line in lines:
            name, _, value = line.partition(":")
            if name in peak:
                peak[name] = max(peak[name], int(value.split()[0]) * 1024)


def warm(folders: Sequence[Path], gibibytes: int = 2) -> None:
    """Read the inputs into the page cache and make the host back some memory, so that runs are alike."""
    held = bytearray(gibibytes << 30)
    for position in range(0, len(held), 4096):
        held[position] = 1
    del held
    for folder in folders:
        for file in sorted(folder.rglob("*.safetensors")):
            with file.open("rb", buffering=0) as stream:
                while stream.read(1 << 24):
                    pass


def machine_lines(packages: Sequence[str]) -> list[str]:
    """The machine in words: processor, cores, memory, system, and versions of what is compared."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in info if line.startswith("model name")]
    flags = next((line.split() for line in info if line.startswith("flags")), [])
    vectors = next((one for one in ("avx512f", "avx2", "avx") if one in flags), "no AVX")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    busy = os.getloadavg()[0]
    return [
        f"{names[0] if names else platform.machine()} ({vectors}), {count_usable_cores()} cores, "
        f"{memory / 2**30:.0f} GiB, {platform.system()} {platform.release()}, load {busy:.1f}",
        ", ".join(
            [f"Python {platform.python_version()}", *(f"{n} {_version(n)}" for n in packages)]
        ),
    ]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "is not installed"
