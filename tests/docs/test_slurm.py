"""The scripts of the page on SLURM: members as an array, one preempted, and the merge."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, blocks
from tests.support import tiny
from tests.support.commands import environment


def start(script: str, folder: Path, task: int = 0) -> subprocess.Popen[str]:
    """Start a script as SLURM does: by bash, with the number of the array's task."""
    variables = environment(
        PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin",
        SLURM_ARRAY_TASK_ID=str(task),
        SLURM_CPUS_PER_TASK="1",
    )
    return subprocess.Popen(
        ["bash", script], cwd=folder, env=variables, stderr=subprocess.PIPE, text=True
    )


def wait_for(job: subprocess.Popen[str], code: int = 0) -> str:
    """Wait for a job's end, which has this exit code, and return what it said."""
    said = job.communicate(timeout=300)[1]
    assert job.returncode == code, said
    return said


def read_member(folder: Path, task: int) -> bytes:
    return (folder / "out" / str(task) / "member" / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_a_preempted_member_that_is_queued_again_has_the_bytes_of_one_that_was_not(
    bert: Path, tmp_path: Path
) -> None:
    pairs = [{"query": f"find {one}", "pos": [f"{one} of it"]} for one in tiny.WORDS]
    for name in ("calm", "preempted"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "base").symlink_to(bert)
        (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs * 12))
        for block in blocks(DOCS / "howto" / "slurm.md"):
            (folder / block.title).write_text(block.code)
        recipe = (folder / "member.yaml").read_text()
        (folder / "member.yaml").write_text(recipe + "      save_steps: 5\n")
    wait_for(start("member.sbatch", tmp_path / "calm", 1))
    folder = tmp_path / "preempted"
    for task in range(3):
        job = start("member.sbatch", folder, task)
        if task == 1:
            while job.poll() is None and not list(folder.glob("out/1/**/state*")):
                time.sleep(0.02)
            job.send_signal(signal.SIGTERM)
            *_, step = wait_for(job, 143).strip().rpartition("here: member after optimizer step ")
            assert list(folder.glob(f"out/1/.work/*/states/step-{step}"))
            job = start("member.sbatch", folder, task)
        wait_for(job)
    assert read_member(folder, 1) == read_member(tmp_path / "calm", 1)
    assert read_member(folder, 1) != read_member(folder, 0)
    wait_for(start("merged.sbatch", folder))
    assert (folder / "out" / "merged" / "merged" / "model.safetensors").is_file()
