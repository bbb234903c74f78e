"""Ctrl-C and SIGTERM raise an exception in the main thread, and end the process in any case."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

RAISE_AGAIN_SECONDS = 2.0
"""Seconds after a signal in which a second one counts as the same: groups and supervisors send it twice."""
LONGEST_END_SECONDS = 30.0
"""Seconds after a signal in which the work must end; then the process is ended, as if it were killed."""

_RETRY_SECONDS = 0.1


class Terminated(KeyboardInterrupt):
    """The process was asked to end (SIGTERM)."""


@contextmanager
def ended_by_signal(stopped: Callable[[int], int]) -> Iterator[None]:
    """Run the `with` block so that SIGINT raises KeyboardInterrupt in it, and SIGTERM raises Terminated.

    `stopped(number)` prints that signal `number` ended the work, and returns the exit code; it is called here
    only if the block does not end by itself. If SIGINT was ignored before, it stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # emberge runs inside another program's process
        return
    watch = _Watch(stopped)
    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        numbers.append(signal.SIGINT)
    previous_hook, sys.unraisablehook = sys.unraisablehook, watch.handle_unraisable
    previous_handlers = {number: signal.signal(number, watch.interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
        sys.unraisablehook = previous_hook
        for timer in watch.timers:
            timer.cancel()


class _Watch:
    """The handler of signals, and the timers that it has started."""

    def __init__(self, stopped: Callable[[int], int]) -> None:
        self._stopped = stopped
        self._hook = sys.unraisablehook
        self._raised, self._number = -RAISE_AGAIN_SECONDS, 0
        self.timers: list[threading.Timer] = []

    def interrupt(self, number: int, _: object) -> None:
        """Raise the signal's exception, unless it was raised less than `RAISE_AGAIN_SECONDS` seconds ago."""
        now = time.monotonic()
        if now - self._raised < RAISE_AGAIN_SECONDS:
            return
        is_first, self._raised, self._number = not self._number, now, number
        if is_first:
            self._start_timer(LONGEST_END_SECONDS, self._end_process)
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    def handle_unraisable(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Send a signal again whose exception the interpreter dropped, as it does in callbacks of imports."""
        if not issubclass(unraisable.exc_type, KeyboardInterrupt) or not self._number:
            self._hook(unraisable)
            return
        self._raised = -RAISE_AGAIN_SECONDS
        main = threading.main_thread().ident or 0
        self._start_timer(_RETRY_SECONDS, lambda: signal.pthread_kill(main, self._number))

    def _start_timer(self, seconds: float, call: Callable[[], object]) -> None:
        timer = threading.Timer(seconds, call)
        timer.daemon = True
        self.timers.append(timer)
        timer.start()

    def _end_process(self) -> None:
        """End the process at once; the next run resumes as after a kill."""
        code = self._stopped(self._number)
        sys.stderr.flush()
        os._exit(code)
