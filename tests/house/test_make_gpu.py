"""`make gpu` works from a bare clone: tried on the CPU, where nothing of emberge is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.places import ROOT


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has everything installed here but emberge."""
    root = tmp_path_factory.mktemp("bare")
    here = Path(sysconfig.get_path("purelib"))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / "venv"], check=True)
    (site,) = (root / "venv").glob("lib/python*/site-packages")
    for path in here.iterdir():
        if "emberge" not in path.name and path.suffix != ".pth" and path.name != "__pycache__":
            (site / path.name).symlink_to(path)
    return root / "venv" / "bin" / "python"


def make(python: Path, out: Path, *words: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of what `make gpu` runs."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("COVERAGE_", "EMBERGE_"))}
    done = subprocess.run(
        [python, "-m", "tests.gpu.run_all", "--out", out, *words],
        cwd=ROOT,
        env={**kept, "PYTHONPATH": "core:plugins", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def rows(text: str) -> list[list[str]]:
    """The cells of a Markdown table, its head and rule left out."""
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_target_installs_nothing() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    (target,) = re.findall(r"^gpu:(.*\n(?:\t.*\n)+)", makefile, re.MULTILINE)
    assert "$(READY)" not in target
    assert "pip" not in target
    assert "-m tests.gpu.run_all" in target


@pytest.mark.slow
def test_everything_runs_on_the_cpu(bare: Path, tmp_path: Path) -> None:
    from tests.gpu.merged_bytes import METHODS

    code, said, err = make(bare, tmp_path / "out", "--devices", "cpu", "--small")
    assert code == 0, said + err
    found = {(row[0], row[1]): row for row in rows(said)}
    assert found["tests", "tests/gpu"][2] == "skipped"
    assert "CUDA" in found["tests", "tests/gpu"][3]
    assert found["demo", "boom/demo"][2] == "passed"
    for strategy in [method.strategy for method in METHODS if method.in_small]:
        row = found["merge", strategy]
        assert (row[2], row[3][:14]) == ("passed", "the same bytes")
        assert f"merge: {strategy}: passed: {row[3]}" in err, "figures as they come"
    assert (tmp_path / "out" / "table.md").read_text("utf-8").strip() in said


def test_without_a_gpu_nothing_is_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    from tests.gpu import run_all

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert run_all.main(["--out", str(tmp_path / "out")]) == 2
    said, err = capsys.readouterr()
    assert said == ""
    assert err.startswith("make gpu: torch ")
    assert not (tmp_path / "out").exists()


def test_other_bytes_fail_an_elementwise_method_and_few_others_no_other(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    from tests.gpu.merged_bytes import compare

    plain = {"w": torch.linspace(-1, 1, 40_000)}
    changes = {"same": 0.0, "rounded": 1e-6, "one": 0.5, "nan": float("nan")}
    for name, change in changes.items():
        tensor = plain["w"].clone()
        tensor[7] += change
        (tmp_path / name).mkdir()
        save_file({"w": tensor}, tmp_path / name / "model.safetensors")
    for elementwise, wanted in (
        (True, {"same": True, "rounded": False, "one": False, "nan": False}),
        (False, {"same": True, "rounded": True, "one": True, "nan": False}),
    ):
        got = {n: compare(tmp_path / "same", tmp_path / n, elementwise)[0] for n in changes}
        assert got == wanted
    save_file({"w": plain["w"] + 0.01}, tmp_path / "one" / "model.safetensors")
    assert not compare(tmp_path / "same", tmp_path / "one", elementwise=False)[0]
