"""A short demo, killed at random moments, ends as one that was never killed."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

MOMENTS = 4
SHORT = ("limit=96", "test_documents=40", "test_queries=20", "dev_queries=10")
MERGED = "boom/model.safetensors"


def command(out: Path) -> list[str]:
    """The demo's command, with a small corpus and few questions."""
    changes = [
        *(f"corpus.stdlib_corpus.{each}" for each in SHORT),
        "probe.probe_sets.queries=20",
        "probe.probe_sets.documents=40",
    ]
    sets = [word for change in changes for word in ("--set", change)]
    return [sys.executable, "-m", "emberge", "run", "boom/demo", "--out", str(out), *sets]


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def reached(out: Path) -> int:
    """How far a run has ever come: different numbers logged, and steps finished."""
    log = out / "metrics.jsonl"
    seen = set()
    for line in log.read_text("utf-8").splitlines() if log.is_file() else ():
        if line.endswith("}"):
            entry = json.loads(line)
            seen.add((entry["step"], entry["name"], entry["at"]))
    return len(seen) + sum(path.is_symlink() for path in out.glob("*"))


def kill_at(goals: Iterator[tuple[int, float]], out: Path, log: Path) -> list[str]:
    """Kill the run whenever it has come to a goal, a random while later; return where that was."""
    killed = []
    with log.open("ab") as output:
        for goal, delay in goals:
            process = subprocess.Popen(
                command(out), stdout=output, stderr=output, start_new_session=True
            )
            while reached(out) < goal and process.poll() is None:
                time.sleep(0.02)
            time.sleep(delay)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            work = [path.name for path in (out / ".work").glob("*")]
            killed.append(f"{goal} + {delay:.2f} s in {', '.join(work) or 'no step'}")
            print(killed[-1], flush=True)
    return killed


@pytest.mark.slow
def test_kills_leave_the_same_merged_weights(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("ab") as output:
        undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
        subprocess.run(command(undisturbed), check=True, stdout=output, stderr=output)
        seed = int(os.environ.get("EMBERGE_KILL_SEED", random.randrange(1 << 30)))
        draw = random.Random(seed)
        goals = sorted(draw.randrange(reached(undisturbed)) for _ in range(MOMENTS))
        print(f"seed {seed}, of {reached(undisturbed)}:")
        kill_at(((goal, 8 * draw.random() ** 3) for goal in goals), killed, log)
        subprocess.run(command(killed), check=True, stdout=output, stderr=output)
    assert digest(killed / MERGED) == digest(undisturbed / MERGED)
