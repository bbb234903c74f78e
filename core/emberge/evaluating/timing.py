"""Wall and CPU time of calls."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Elapsed:
    """Seconds of wall time, and of CPU time of all threads of the process; both are above 0."""

    wall: float
    cpu: float


def time_call(run: Callable[[], object]) -> Elapsed:
    """Run a function and return the time that it took."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Elapsed(max(wall, 1e-9), max(cpu, 1e-9))
