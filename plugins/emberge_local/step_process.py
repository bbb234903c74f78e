"""The process of one step of a launcher, which ends when the process that started it ends in any way.

Its standard input is a pipe that the starting process keeps open, and that the system closes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import time

from emberge import EmbergeError, Machine
from emberge.interpreter import python_command
from emberge.processes import last_lines

from emberge_local.pool_launcher import Ended, Launch

# Seconds that a process may take to end after it was asked to.
STEP_GRACE = 5.0
_TAIL = 4096  # bytes at the end of a log that are looked at


class StepProcess:
    """A process of one attempt at a step, which ends when this process ends in any way.

    `machine` is the share of this machine that the step may use, and `threads` is the number of threads of
    its sums.

    Raises:
        EmbergeError: if this machine does not see the folders of the run.
    """

    def __init__(self, launch: Launch, machine: Machine, threads: int) -> None:
        self._launch = launch
        self._must_end: float | None = None
        _require_folders(launch)
        call = {**launch.call, "machine": dataclasses.asdict(machine)}
        with launch.log.open("ab") as log:
            self._process = subprocess.Popen(
                python_command("-m", "emberge_local.worker"),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=launch.folder,
                env={
                    **os.environ,
                    # Read by libraries at import; the first two affect results' bytes.
                    **{"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)},
                    "RAYON_NUM_THREADS": str(max(1, machine.workers)),
                },
                start_new_session=True,  # Ctrl-C is for the run, which ends its steps
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already, and `ended` says how
            self._process.stdin.write(json.dumps(call).encode() + b"\n")
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        """The process's number on this machine."""
        return self._process.pid

    def ended(self) -> Ended | None:
        """Return the end of the process; None while it runs."""
        if self._must_end is not None and time.monotonic() > self._must_end:
            self.kill()
        code = self._process.poll()
        if code is None:
            return None
        self._close()
        return Ended(code, _read_last_lines(self._launch))

    def wait(self) -> Ended:
        """Wait until the process has ended, and return its end."""
        self._process.wait()
        ended = self.ended()
        assert ended is not None
        return ended

    def stop(self) -> None:
        """Ask the process to end; `ended` kills it some seconds later."""
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


def _require_folders(launch: Launch) -> None:
    for folder in (launch.work, launch.folder):
        if not folder.is_dir():
            raise EmbergeError(
                f"{folder} is not seen on {socket.gethostname()}; every machine of the run must see it at "
                "the same place, on a disk that they share"
            )


def _read_last_lines(launch: Launch) -> str:
    """Return the errors that the process printed, or else its last line."""
    try:
        with launch.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            printed = file.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(last_lines(printed.split("\n")))
