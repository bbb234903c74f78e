"""Requests that are repeated after temporary failures, and threads for requests that end together."""

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


def call_again(
    what: str,
    call: Callable[[], T],
    wait_after: Callable[[Exception, int], float],
    stop: threading.Event | None = None,
) -> T:
    """Return the result of `call`, which is called again after each temporary failure.

    `wait_after` gets the error and the number of the call, from 1; it returns the seconds to wait, or raises
    the error that ends the calls.

    Raises:
        RequestStoppedError: if `stop` is set in the meantime.
    """
    for number in itertools.count(1):
        try:
            return call()
        except Exception as error:  # each library has errors of its own
            wait = wait_after(error, number)
        if stop is None:
            time.sleep(wait)
        elif stop.wait(wait):
            raise RequestStoppedError(f"{what}: the request was ended; run again")
    raise AssertionError(what)


@contextmanager
def request_threads(count: int) -> Iterator[tuple[ThreadPoolExecutor, threading.Event]]:
    """Yield threads for requests, and their stop signal, which is set if the block fails."""
    stop = threading.Event()
    with ThreadPoolExecutor(count, "request") as threads:
        try:
            yield threads, stop
        except BaseException:
            stop.set()
            threads.shutdown(cancel_futures=True)
            raise
