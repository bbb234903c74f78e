"""Free space of a disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
from emberge import EmbergeError
from emberge.files import require_space


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_a_disk_too_full_for_the_plan_is_refused_with_both_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**10, 10**10, 4_500_000))
    require_space(tmp_path / "not" / "yet", 4_500_000)
    with pytest.raises(EmbergeError) as caught:
        require_space(tmp_path / "not" / "yet", 12_300_000_000)
    assert "needs 12.3 GB of disk, and 4.5 MB are free" in str(caught.value)
