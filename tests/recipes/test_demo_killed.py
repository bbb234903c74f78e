"""The demo, killed at twenty random moments, ends as one that was never killed."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

MOMENTS = 20
MERGED = "boom/model.safetensors"


def command(out: Path) -> list[str]:
    """The demo's command; EMBERGE_DEMO_SET shortens it for a quick look."""
    changes = os.environ.get("EMBERGE_DEMO_SET", "").split()
    sets = [word for change in changes for word in ("--set", change)]
    return [sys.executable, "-m", "emberge", "run", "boom/demo", "--out", str(out), *sets]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.slow
def test_twenty_kills_leave_the_same_merged_weights(tmp_path: Path) -> None:
    log = (tmp_path / "log").open("wb")
    start = time.monotonic()
    subprocess.run(command(tmp_path / "undisturbed"), check=True, stdout=log, stderr=log)
    seconds = time.monotonic() - start

    seed = int(os.environ.get("EMBERGE_KILL_SEED", random.randrange(1 << 30)))
    moments = random.Random(seed)
    killed = []
    out = tmp_path / "killed"
    while len(killed) < MOMENTS:
        process = subprocess.Popen(command(out), stdout=log, stderr=log, start_new_session=True)
        # Early and late: a share of the whole, so that some runs get past the corpus, the trainings, the
        # merge and the evaluation before they die.
        wait = 1.0 + moments.random() * seconds * moments.choice([0.05, 0.15, 0.4])
        try:
            process.wait(wait)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            killed.append(round(wait, 1))
            continue
        # It came to its end: what stands must be right, and the next kill starts from nothing.
        assert digest(out / MERGED) == digest(tmp_path / "undisturbed" / MERGED), (seed, killed)
        out = tmp_path / f"killed-{len(killed)}"
    subprocess.run(command(out), check=True, stdout=log, stderr=log)
    print(f"seed {seed}, killed after {killed} seconds of an undisturbed {seconds:.0f}")
    assert digest(out / MERGED) == digest(tmp_path / "undisturbed" / MERGED), (seed, killed)
