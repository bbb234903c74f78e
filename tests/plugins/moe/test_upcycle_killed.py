"""An upcycling and a downcycling that are killed on the way end in the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.places import ROOT, SUPPORT
from tests.support.routable import dense


def test_killed_and_continued_gives_the_same_bytes(tmp_path: Path) -> None:
    model = dense(tmp_path / "dense", "granite")
    path = os.pathsep.join([str(ROOT), *sys.path])
    run = subprocess.run(
        [sys.executable, SUPPORT / "killed_upcycle.py", model, tmp_path / "work", "4", "4"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    deaths = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(deaths) >= 8
    assert [one for one in deaths if one["code"] != 0 or one["other"]] == []
