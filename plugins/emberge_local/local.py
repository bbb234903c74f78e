"""The `local` launcher: steps side by side on this machine, each in a process that ends with its starter.

The standard input of a step's process is a pipe that the starting process keeps open, and that the system
closes when that process ends in any way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass

from emberge import Count, Machine
from emberge.devices import measure_memory, parse_size
from emberge.interpreter import build_python_command
from emberge.processes import find_error_lines

from emberge_local.pool_launcher import PoolLauncher, ProcessEnd, StepHandle, StepPool, StepRequest

# Seconds that a process may take to end after it was asked to.
STEP_GRACE = 5.0
_TAIL = 4096  # bytes at the end of a log that are looked at


@dataclass(frozen=True, kw_only=True)
class Local(PoolLauncher):
    """Launcher of steps side by side on this machine, each in its own process.

    As many steps run at a time as there are GPUs, and each step gets one GPU; without GPUs, as many steps as
    there are pairs of cores. Cores and `--memory` are divided among the steps. A step whose process is killed
    continues from its last state. Ctrl-C ends all steps, and no step runs on after the run.

    Example:
        emberge run recipe.yaml --out out --launcher local
        emberge run recipe.yaml --out out --launcher '{local: {workers: 4}}'
    """

    workers: Count | None = None
    """Steps that run at a time; with more than there are GPUs, some share one."""
    memory: str | None = None
    """Memory that a step may need, such as 4GB. No more steps run at a time than fit into `--memory`, by
    default this machine's memory."""

    def divide_machine(self, machine: Machine) -> list[Machine]:
        """Return a share of the machine for each of the steps that run at a time.

        Raises:
            RecipeError: if `memory` is not a size such as 4GB.
        """
        gpus = [device for device in machine.devices if device != "cpu"]
        count = self.workers or len(gpus) or max(1, machine.workers // max(2, self.threads))
        memory_per_step = parse_size(self.memory) if self.memory else None
        if memory_per_step is not None:
            count = max(1, min(count, (machine.memory or measure_memory()) // memory_per_step))
        elif machine.memory is not None:
            memory_per_step = machine.memory // count
        share = dataclasses.replace(
            machine, workers=max(1, machine.workers // count), memory=memory_per_step
        )
        return [
            dataclasses.replace(share, devices=(gpus[i % len(gpus)] if gpus else "cpu",))
            for i in range(count)
        ]

    def open(self, machine: Machine) -> AbstractContextManager[StepPool]:
        return contextlib.closing(_MachineShares(self.divide_machine(machine), self.threads))


class _MachineShares:
    """Pool of shares of the machine; a share runs one process at a time."""

    def __init__(self, shares: list[Machine], threads: int) -> None:
        self._shares = shares
        self._threads = threads
        self._process_by_share: dict[int, StepProcess] = {}

    @property
    def has_room(self) -> bool:
        return self._find_free_share() is not None

    def launch(self, request: StepRequest) -> StepHandle:
        share = self._find_free_share()
        assert share is not None, "asked for room before"
        self._process_by_share[share] = StepProcess(request, self._shares[share], self._threads)
        return self._process_by_share[share]

    def close(self) -> None:
        """Kill all processes."""
        for process in self._process_by_share.values():
            process.kill()

    def _find_free_share(self) -> int | None:
        """Return the number of a share whose process has ended, or that has none yet; None without one."""
        for share in range(len(self._shares)):
            process = self._process_by_share.get(share)
            if process is None or process.poll() is not None:
                return share
        return None


class StepProcess:
    """A process of one attempt at a step, which ends when this process ends in any way.

    `machine` is the share of this machine that the step may use, and `threads` is the number of threads of
    its sums.
    """

    def __init__(self, request: StepRequest, machine: Machine, threads: int) -> None:
        self._request = request
        self._must_end: float | None = None
        call = {**request.call, "machine": dataclasses.asdict(machine)}
        with request.log.open("ab") as log:
            self._process = subprocess.Popen(
                build_python_command("-m", "emberge_local.worker"),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=request.current_folder,
                env={
                    **os.environ,
                    # Read by libraries at import; the first two affect results' bytes.
                    **{"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)},
                    "RAYON_NUM_THREADS": str(max(1, machine.workers)),
                },
                start_new_session=True,  # Ctrl-C is for the run, which ends its steps
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already, and `poll` says how
            self._process.stdin.write(json.dumps(call).encode() + b"\n")
            self._process.stdin.flush()

    def poll(self) -> ProcessEnd | None:
        """Return the end of the process; None while it runs."""
        if self._must_end is not None and time.monotonic() > self._must_end:
            self.kill()
        code = self._process.poll()
        if code is None:
            return None
        self._close()
        return ProcessEnd(code, _read_last_lines(self._request))

    def stop(self) -> None:
        """Ask the process to end; `poll` kills it some seconds later."""
        if self._must_end is None:
            self._must_end = time.monotonic() + STEP_GRACE
            self._send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and all that it has started."""
        self._send_signal(signal.SIGKILL)
        self._process.wait()
        self._close()

    def _send_signal(self, number: int) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()


def _read_last_lines(request: StepRequest) -> str:
    """Return the errors that the process printed, or else its last line."""
    try:
        with request.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            printed = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(find_error_lines(printed.split("\n")))
