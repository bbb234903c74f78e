"""A file that somebody left in the current folder runs in no child process, whatever starts it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from emberge import Machine
from emberge_local import StepProcess, StepRequest

# Early ones of the standard library, of others, and our own.
NAMES = ("json", "socket", "xxhash", "numpy", "torch", "pluggy", "emberge", "emberge_local")
PLANTED = """\
import pathlib
pathlib.Path(__file__).with_suffix(".ran").touch()
raise SystemExit("a planted file ran")
"""


def plant(folder: Path) -> Path:
    """Write the files, and return their folder."""
    folder.mkdir(exist_ok=True)
    for name in NAMES:
        (folder / f"{name}.py").write_text(PLANTED)
    return folder


def ran(folder: Path) -> list[str]:
    """The planted files that ran."""
    return sorted(file.name for file in folder.glob("*.ran"))


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, where files shadow what a child imports; after the test none has run."""
    monkeypatch.chdir(plant(tmp_path / "planted"))
    yield tmp_path / "planted"
    assert ran(tmp_path / "planted") == []


def test_planted_files_run_where_a_child_takes_them(tmp_path: Path) -> None:
    """Otherwise the other tests would show nothing."""
    words = [sys.executable, "-c", "import json"]
    done = subprocess.run(words, cwd=plant(tmp_path), capture_output=True, check=False)
    assert done.stderr == b"a planted file ran\n"
    assert ran(tmp_path) == ["json.ran"]


def test_the_process_of_a_step_imports_nothing_from_the_folder_it_works_in(planted: Path) -> None:
    log = planted / "log"
    process = StepProcess(StepRequest(planted, log, planted, {}), Machine(), threads=1)
    while (ended := process.poll()) is None:
        time.sleep(0.05)
    assert ended.code == 1
    assert "TypeError: StepCall" in ended.last_lines, "it came as far as reading its call"


def test_ranks_import_nothing_from_the_current_folder(planted: Path) -> None:
    code = "from emberge.processes import run_ranks; raise SystemExit(run_ranks(['run'], 2))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, check=False)
    reached = (b"arguments are required: RECIPE", b"rank 1 has ended (exit code 2)")
    assert any(words in done.stderr for words in reached), "it came as far as its command"
