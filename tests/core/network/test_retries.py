"""Requests that are repeated, and threads for them: they end with the work around them."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest
from emberge.network import call_again, request_threads
from emberge.network.request_errors import RequestStoppedError


def test_a_call_is_repeated_until_it_answers_or_its_error_is_raised() -> None:
    left = [OSError("a"), OSError("b")]
    numbers = []

    def call() -> str:
        if left:
            raise left.pop(0)
        return "answer"

    def wait_after(error: Exception, number: int) -> float:
        if not isinstance(error, OSError):
            raise error
        numbers.append(number)
        return 0.0

    assert call_again("it", call, wait_after) == "answer"
    assert numbers == [1, 2]
    with pytest.raises(ZeroDivisionError):
        call_again("it", lambda: 1 // 0, wait_after)


def test_waiting_for_the_next_attempt_ends_with_the_work() -> None:
    stop = threading.Event()
    threading.Timer(0.05, stop.set).start()
    with pytest.raises(RequestStoppedError, match="it: the request was ended"):
        call_again("it", lambda: 1 // 0, lambda *_: 60.0, stop)


def test_threads_begin_nothing_more_when_their_work_fails() -> None:
    begun = threading.Event()
    futures: list[Future[bool]] = []

    def work() -> None:
        with request_threads(1) as (threads, stop):
            futures.append(threads.submit(lambda: begun.set() or stop.wait(60)))  # type: ignore[func-returns-value]
            futures.append(threads.submit(lambda: True))
            begun.wait(10)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert futures[0].result()
    assert futures[1].cancelled()
