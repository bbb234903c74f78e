"""A generation that is killed ends, run again, in the same bytes, and buys no kept reply twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.killed_generating import PARALLEL

ROOT = Path(__file__).parents[4]


def die(root: Path, deaths: int) -> list[dict[str, Any]]:
    path = os.pathsep.join([str(ROOT), *sys.path])
    run = subprocess.run(
        [sys.executable, ROOT / "tests/support/killed_generating.py", root / "work", str(deaths)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(found) == deaths
    return found


def check(deaths: list[dict[str, Any]]) -> None:
    assert [one for one in deaths if one["code"] != 0 or one["other"]] == []
    assert [one for one in deaths if one["again"]["kept"]] == []
    assert [one for one in deaths if one["again"]["on their way"] > PARALLEL] == []


def test_a_generation_that_is_killed_goes_on(tmp_path: Path) -> None:
    check(die(tmp_path, 4))


@pytest.mark.slow
def test_twenty_kills_change_no_byte_and_buy_nothing_twice(tmp_path: Path) -> None:
    deaths = die(tmp_path, 20)
    check(deaths)
    assert sum(0 < one["kept"] < 300 for one in deaths) >= 5, "some came between requests"
