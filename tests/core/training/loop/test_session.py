"""The save clock, and a session's batches as a measurement goes through them."""

from __future__ import annotations

import pytest
from emberge.training import SaveClock


def test_a_state_is_due_later_where_saving_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    clock = SaveClock(seconds=30, share=20)
    now[0] = 29.0
    assert not clock.is_due()
    now[0] = 30.0
    assert clock.is_due()
    with clock.saving():
        now[0] = 33.0  # 3 seconds, so one in 20 parts is a minute
    for since, due in ((30.0, False), (59.0, False), (60.0, True)):
        now[0] = 33.0 + since
        assert clock.is_due() == due
    clock.start()
    now[0] += 30.0
    assert clock.is_due()
