"""Vectors of a million texts are on disk: a training with a teacher does not hold them in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.places import ROOT


@pytest.mark.slow
def test_a_million_texts_vectors_stay_within_300_mb(tmp_path: Path) -> None:
    """In memory they would be 1.5 GB."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.million_texts", str(tmp_path), "1000000"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert int(done.stdout) < 300e6
