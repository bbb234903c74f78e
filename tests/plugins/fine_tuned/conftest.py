"""Heads without dropout, so that plain loops can follow them."""

from __future__ import annotations

import pytest
from emberge_fine_tuned import head_tasks


@pytest.fixture
def no_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give heads no dropout."""
    monkeypatch.setattr(head_tasks, "_DROPOUT_SHARE", 0.0)
