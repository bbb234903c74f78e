"""Child processes that end with their parent, and what is known of one that has ended.

A child's standard input is a pipe that its parent keeps open. When the parent ends in any way the system
closes the pipe, and the child, which waits at its other end, ends too.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable

from emberge.errors import EmbergeError

LEASH = "EMBERGE_LEASH"
"""The environment variable by which a process knows that its standard input ends with its parent."""

_ERROR = "error: "


def end_with_parent() -> None:
    """End this process, and all that it started in its group, as soon as its standard input ends."""
    threading.Thread(target=_wait_for_end, daemon=True).start()


def read_call() -> bytes | None:
    """Return the first line of standard input, and end with the parent from there on.

    None means that the parent ended before it wrote a whole line.
    """
    with open(0, "rb", buffering=0, closefd=False) as stream:
        line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    end_with_parent()
    return line


def last_lines(printed: Iterable[str]) -> list[str]:
    """Return the lines that name errors, or the last line that is not empty; all without blanks around."""
    lines = [line.strip() for line in printed if line.strip()]
    return [line for line in lines if line.startswith(_ERROR)] or lines[-1:]


def ended_how(code: int, printed: Iterable[str]) -> str:
    """Return why a child ended: the last error that it printed, else its signal or exit code."""
    last = [line for line in last_lines(printed) if line.startswith(_ERROR)][-1:]
    if last:
        return last[0].removeprefix(_ERROR)
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def _wait_for_end() -> None:
    while os.read(0, 4096):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(EmbergeError.exit_code)
