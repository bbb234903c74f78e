"""Minings that are killed on the way end, run again, in the bytes of one that was not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
SUPPORT = ROOT / "tests" / "support"


def test_a_mining_that_is_killed_at_any_moment_ends_in_the_same_bytes(
    bert: Path, tmp_path: Path
) -> None:
    path = os.pathsep.join([str(ROOT), *sys.path])
    run = subprocess.run(
        [sys.executable, SUPPORT / "killed_mining.py", bert, tmp_path / "work", "4"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    deaths = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(deaths) == 4
    assert [one for one in deaths if one["code"] != 0 or one["other"]] == []
