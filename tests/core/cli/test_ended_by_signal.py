"""Signals end a command while its main thread waits, and in any case."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import pytest
from emberge.cli import ended_by_signal as subject
from emberge.cli.ended_by_signal import Terminated, ended_by_signal

LIMIT = 60.0


def never(_: int) -> int:
    raise AssertionError("the block ends by itself")


def raised_in(work: Callable[[], object]) -> type[BaseException]:
    with pytest.raises(KeyboardInterrupt) as raised, ended_by_signal(never):
        work()
    return raised.type


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)
def test_a_signal_ends_the_wait_of_the_main_thread(
    number: signal.Signals, kind: type[BaseException], interruptible: None
) -> None:
    def work() -> None:
        threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
        assert not threading.Event().wait(LIMIT)

    began = time.monotonic()
    assert raised_in(work) is kind
    assert time.monotonic() - began < LIMIT


def test_a_signal_is_seen_that_comes_while_the_interpreter_calls_back() -> None:
    class Deleted:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    def work() -> None:
        Deleted()
        threading.Event().wait(LIMIT)

    assert raised_in(work) is Terminated


def test_a_signal_that_is_sent_twice_is_raised_once() -> None:
    cleaned = threading.Event()

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            cleaned.set()

    assert raised_in(work) is Terminated
    assert cleaned.is_set()


def test_a_later_signal_is_raised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """By somebody to whom cleaning takes too long."""
    monkeypatch.setattr(subject, "RAISE_AGAIN_SECONDS", 0.0)

    def work() -> None:
        with pytest.raises(Terminated):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)

    assert raised_in(work) is Terminated


def test_work_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    ended = threading.Event()

    def leave(code: int) -> None:
        codes.append(code)
        ended.set()

    monkeypatch.setattr(subject, "LONGEST_END_SECONDS", 0.0)
    monkeypatch.setattr(os, "_exit", leave)
    with ended_by_signal(lambda number: 128 + number):
        with pytest.raises(Terminated):
            signal.raise_signal(signal.SIGTERM)
        assert ended.wait(LIMIT)
    assert set(codes) == {143}


def test_what_was_there_before_is_there_again(interruptible: None) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    hook = sys.unraisablehook
    with ended_by_signal(never):
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(number) for number in numbers] == before
    assert sys.unraisablehook is hook


def test_an_ignored_ctrl_c_stays_ignored(interruptible: None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with ended_by_signal(never):
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.fixture
def interruptible():  # type: ignore[no-untyped-def]
    """Have Ctrl-C as a terminal has it: who starts tests in the background may have it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
