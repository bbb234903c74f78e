"""Calls that can be ended while they wait: by an event, by a time limit, and by Ctrl-C.

What blocks inside the system or a library (a name's address, a bucket's client) cannot be ended by Python, so
it runs in a thread that nobody waits for once the caller has given up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from emberge.network.request_errors import RequestStoppedError

__all__ = ["POLL", "call_within", "request_threads", "require_going"]

T = TypeVar("T")

POLL = 0.2
"""Seconds after which a wait looks whether it shall end."""


def require_going(what: str, stop: threading.Event | None) -> None:
    """Make sure that the work around a request goes on.

    Raises:
        RequestStoppedError: when it was ended.
    """
    if stop is not None and stop.is_set():
        raise RequestStoppedError(f"{what}: the request was ended; run again")


def call_within(
    what: str, call: Callable[[], T], seconds: float, stop: threading.Event | None = None
) -> T:
    """Return the result of a call that may block; the wait for it ends with `stop` and after `seconds`.

    Raises:
        TimeoutError: when the time is over.
        RequestStoppedError: when `stop` is set before.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # the caller's thread raises it
            errors.append(error)
        finally:
            done.set()

    threading.Thread(target=run, name="request", daemon=True).start()
    left = seconds
    while not done.wait(min(POLL, max(left, 0.0))):
        require_going(what, stop)
        left -= POLL
        if left <= 0:
            raise TimeoutError(f"{what}: no answer within {seconds:,.0f} s")
    if errors:
        raise errors[0]
    return results[0]


@contextmanager
def request_threads(count: int) -> Iterator[tuple[ThreadPoolExecutor, threading.Event]]:
    """Give threads for requests, and the event that ends these; it is set where the block fails."""
    stop = threading.Event()
    with ThreadPoolExecutor(count, "request") as threads:
        try:
            yield threads, stop
        except BaseException:
            stop.set()
            threads.shutdown(cancel_futures=True)
            raise
