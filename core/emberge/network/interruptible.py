"""Requests that can be interrupted: by the work that needs them, a time limit, or Ctrl-C.

Python cannot end a call that blocks inside the system or a library (a name's address, a bucket's client).
Such a call runs in a thread, and the thread is not waited for once the caller has given up.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from emberge.network.request_errors import RequestStoppedError

T = TypeVar("T")

POLL = 0.2
"""Seconds between checks of a wait's stop signal."""

_LOCAL = threading.local()


class Stop:
    """A stop signal for some work; unless `alone`, also set by the signal of the work around it."""

    def __init__(self, *, alone: bool = False) -> None:
        self._own = threading.Event()
        self._outer: Stop | None = None if alone else getattr(_LOCAL, "stop", None)

    def set(self) -> None:
        """End the work."""
        self._own.set()

    def is_set(self) -> bool:
        """Return whether the work should end."""
        return self._own.is_set() or (self._outer is not None and self._outer.is_set())

    def wait(self, seconds: float) -> None:
        """Wait until the work should end, at most `seconds`."""
        until = time.monotonic() + seconds
        while not self.is_set() and (left := until - time.monotonic()) > 0:
            self._own.wait(min(left, POLL))


def require_going(what: str, stop: Stop | None) -> None:
    """Raise an error if the work around a request has ended.

    Raises:
        RequestStoppedError: if it has.
    """
    if stop is not None and stop.is_set():
        raise RequestStoppedError(f"{what}: the request was ended; run again")


def call_again(
    what: str,
    call: Callable[[], T],
    wait_after: Callable[[Exception, int], float],
    stop: Stop | None = None,
) -> T:
    """Return the result of `call`, which is called again after each temporary failure.

    `wait_after` gets the error and the number of the call, from 1; it returns the seconds to wait, or raises
    the error that ends the calls.

    Raises:
        RequestStoppedError: if `stop` is set in the meantime.
    """
    stop = stop or Stop()
    for number in itertools.count(1):
        try:
            return call()
        except Exception as error:  # each library has errors of its own
            wait = wait_after(error, number)
        stop.wait(wait)
        require_going(what, stop)
    raise AssertionError(what)


def call_within(what: str, call: Callable[[], T], seconds: float | None, stop: Stop | None) -> T:
    """Return the result of a call that may block; the wait for it ends with `stop` and after `seconds`.

    Raises:
        TimeoutError: if the call takes longer.
        RequestStoppedError: if `stop` is set before the call returns.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    finished = threading.Event()

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # the caller's thread raises it
            errors.append(error)
        finally:
            finished.set()

    threading.Thread(target=run, name="request", daemon=True).start()
    until = None if seconds is None else time.monotonic() + seconds
    while not finished.wait(
        POLL if until is None else max(0.0, min(POLL, until - time.monotonic()))
    ):
        require_going(what, stop)
        if until is not None and time.monotonic() >= until:
            raise TimeoutError(f"{what}: no answer within {seconds:,.0f} s")
    if errors:
        raise errors[0]
    return results[0]


@contextmanager
def request_threads(count: int) -> Iterator[tuple[ThreadPoolExecutor, Stop]]:
    """Yield threads for requests, and their stop signal, which is set if the block fails.

    The signal also ends work that these threads start in further threads.
    """
    stop = Stop()

    def belong() -> None:
        _LOCAL.stop = stop

    with ThreadPoolExecutor(count, "request", belong) as threads:
        try:
            yield threads, stop
        except BaseException:
            stop.set()
            threads.shutdown(cancel_futures=True)
            raise
