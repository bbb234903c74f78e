"""A process for one step: how it is started, that it ends with whoever started it, and what it said last."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time

from emberge.contracts.launcher import Ended, Launch
from emberge.contracts.step import Machine
from emberge.errors import EmbergeError

__all__ = ["WORKER", "StepProcess"]

# The word that makes the command line a worker; it is for no person to type.
WORKER = "_work"
# How long a process that was asked to end may take to tidy up.
GRACE = 5.0
_LAST_WORDS = 4096  # bytes


class StepProcess:
    """Runs one attempt at a step; when this process ends in any way, that one does too.

    `machine` is the share of this machine that the step may use, and `threads` those of its sums.

    Raises:
        EmbergeError: where the folders of the run are not seen.
    """

    def __init__(self, launch: Launch, machine: Machine, threads: int) -> None:
        self._launch = launch
        self._must_end: float | None = None
        _require_folders(launch)
        call = {**launch.call, "machine": dataclasses.asdict(machine)}
        with launch.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "emberge", WORKER],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=launch.folder,
                env={**os.environ, **_threads(threads, machine)},
                start_new_session=True,  # Ctrl-C is for the run, which ends its steps
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already, and `ended` says how
            self._process.stdin.write(json.dumps(call).encode() + b"\n")
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        """Its number on this machine."""
        return self._process.pid

    def ended(self) -> Ended | None:
        """How it ended, None while it runs."""
        if self._must_end is not None and time.monotonic() > self._must_end:
            self.kill()
        code = self._process.poll()
        if code is None:
            return None
        self._close()
        return Ended(code, _last_words(self._launch))

    def wait(self) -> Ended:
        """Wait until it has ended."""
        self._process.wait()
        ended = self.ended()
        assert ended is not None
        return ended

    def stop(self) -> None:
        """Ask it to end, and see to it some seconds later."""
        if self._must_end is None:
            self._must_end = time.monotonic() + GRACE
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it now, with all that it has started."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._close()

    def _signal(self, number: int) -> None:
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


def _threads(threads: int, machine: Machine) -> dict[str, str]:
    """What libraries read when they are first imported: the first two decide bytes, the last does not."""
    tokenisers = {"RAYON_NUM_THREADS": str(max(1, machine.workers))}
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), **tokenisers}


def _last_words(launch: Launch) -> str:
    """The errors that it named, or the last line that it printed."""
    try:
        with launch.log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_WORDS))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    spoken = [line.strip() for line in lines if line.strip()]
    errors = [line for line in spoken if line.startswith("error: ")]
    return "\n".join(errors or spoken[-1:])
