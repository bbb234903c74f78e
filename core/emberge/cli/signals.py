"""Signals that stop a command, raised as exceptions in its main thread."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

RAISE_AGAIN_SECONDS = 2.0
"""Seconds after a signal in which a second one counts as the same: groups and supervisors send it twice."""


class Terminated(KeyboardInterrupt):
    """The process was asked to end (SIGTERM)."""


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Run the `with` block so that SIGINT raises KeyboardInterrupt in it, and SIGTERM raises Terminated.

    If SIGINT was ignored before, it stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # emberge runs inside another program's process
        return
    last = -RAISE_AGAIN_SECONDS

    def interrupt(number: int, _: object) -> None:
        nonlocal last
        if time.monotonic() - last >= RAISE_AGAIN_SECONDS:
            last = time.monotonic()
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        numbers.append(signal.SIGINT)
    previous_handlers = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
