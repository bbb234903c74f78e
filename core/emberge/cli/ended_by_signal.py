"""Ctrl-C and SIGTERM raise an exception in the main thread wherever it waits, and always end the process.

Python handles signals between two instructions of the main thread. A signal that arrives just as this thread
starts to wait for a lock is not handled until another thread wakes it, which may be minutes later. An
exception that is raised in one of the interpreter's callbacks, as in imports, is dropped. Therefore the
system notifies a second thread of each signal, and that thread wakes the main thread until the signal has
been handled.
"""

from __future__ import annotations

import _thread
import os
import select
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

# A signal that is ignored unless it has a handler, and that has no other use here.
_WAKE_SIGNAL = signal.SIGURG
_POLL_SECONDS = 0.1
# The ends of pipes to which the system writes signals now.
_PIPES: list[int] = []


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
    handlers: dict[signal.Signals, Callable[[int, object], None]]
    handlers = {signal.SIGTERM: watch.interrupt, _WAKE_SIGNAL: _ignore_signal}
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        handlers[signal.SIGINT] = watch.interrupt
    hook = sys.unraisablehook
    sys.unraisablehook = watch.guarded(hook)
    previous_handlers = {
        number: signal.signal(number, handler) for number, handler in handlers.items()
    }
    previous_wakeup_fd = signal.set_wakeup_fd(watch.writer, warn_on_full_buffer=False)
    _PIPES.append(watch.writer)
    watch.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous_wakeup_fd)
        _PIPES.remove(watch.writer)
        watch.close()
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook


def _ignore_signal(*_: object) -> None:
    """Do nothing: the signal has ended a wait, after which Python handles pending signals."""


def _forget_in_child() -> None:
    """Detach a forked child, so that the child's signals are not reported to this process."""
    if _PIPES:
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_forget_in_child)


class _Watch:
    """The thread that makes sure that the main thread sees its signals."""

    def __init__(self, stopped: Callable[[int], int]) -> None:
        self._stopped = stopped
        self._reader, self.writer = os.pipe()
        os.set_blocking(self.writer, False)
        self._main = threading.get_ident()
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)
        self._raised, self._number = -RAISE_AGAIN_SECONDS, 0
        self._until: float | None = None
        self._dropped = False
        self._closed = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        os.close(self.writer)
        self._thread.join()
        os.close(self._reader)

    def interrupt(self, number: int, _: object) -> None:
        """Raise the signal's exception, unless it was raised less than `RAISE_AGAIN_SECONDS` seconds ago."""
        now = time.monotonic()
        if now - self._raised < RAISE_AGAIN_SECONDS:
            return
        self._raised, self._number = now, number
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    def guarded(self, hook: Callable[[sys.UnraisableHookArgs], object]) -> Callable[..., None]:
        """Return a hook for unraisable exceptions: a signal's is raised again, others go to `hook`."""

        def handle_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
            if not issubclass(unraisable.exc_type, KeyboardInterrupt) or not self._number:
                hook(unraisable)
                return
            self._raised, self._dropped = -RAISE_AGAIN_SECONDS, True
            os.write(self.writer, bytes([self._number]))

        return handle_unraisable

    def _run(self) -> None:
        while not self._closed.is_set():
            seconds_left = None if self._until is None else max(0.0, self._until - time.monotonic())
            if not select.select([self._reader], [], [], seconds_left)[0]:
                self._end_process()
            for number in os.read(self._reader, 512):
                self._wake_main_thread(number)

    def _wake_main_thread(self, number: int) -> None:
        """Wake the main thread repeatedly until it has handled a signal."""
        if number == _WAKE_SIGNAL:
            return
        if self._until is None:
            self._number = number
            self._until = time.monotonic() + LONGEST_END_SECONDS
        while (
            not self._closed.wait(_POLL_SECONDS)
            and time.monotonic() - self._raised > RAISE_AGAIN_SECONDS
        ):
            if time.monotonic() > self._until:
                self._end_process()
            if self._dropped:
                self._dropped = False
                _thread.interrupt_main(signal.Signals(self._number))
            signal.pthread_kill(self._main, _WAKE_SIGNAL)

    def _end_process(self) -> None:
        """End the process at once; the next run resumes as after a kill."""
        code = self._stopped(self._number)
        sys.stderr.flush()
        os._exit(code)
