"""Signals end a command while its main thread waits."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

import pytest
from emberge.cli import signals
from emberge.cli.signals import Terminated, interrupted_by_signals

LIMIT = 60.0


def raised_in(work: Callable[[], object]) -> type[BaseException]:
    with pytest.raises(KeyboardInterrupt) as raised, interrupted_by_signals():
        work()
    return raised.type


def test_a_signal_that_is_sent_twice_is_raised_once_and_a_later_one_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cleaned = threading.Event()

    def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            cleaned.set()

    assert raised_in(work) is Terminated
    assert cleaned.is_set()
    monkeypatch.setattr(signals, "RAISE_AGAIN_SECONDS", 0.0)
    cleaned.clear()
    assert raised_in(work) is Terminated
    assert not cleaned.is_set()


def test_an_ignored_ctrl_c_stays_ignored_and_handlers_are_put_back(interruptible: None) -> None:
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupted_by_signals():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.fixture
def interruptible():  # type: ignore[no-untyped-def]
    """Have Ctrl-C as a terminal has it: who starts tests in the background may have it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
