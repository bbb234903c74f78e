"""Run Python in a process of its own, as a user's shell would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def environment(**changes: str) -> dict[str, str]:
    """This process's environment without what measures coverage or changes what emberge finds."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("COVERAGE_", "EMBERGE_"))}
    kept.pop("PYTHONPATH", None)
    return {**kept, "OMP_NUM_THREADS": "1", **changes}


def python(
    *arguments: str,
    executable: Path | str = sys.executable,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    fails: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run the interpreter; unless it may fail, it must exit with 0."""
    done = subprocess.run(
        [str(executable), *arguments],
        env=dict(env or environment()),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert fails or done.returncode == 0, (
        f"{arguments}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    )
    return done
