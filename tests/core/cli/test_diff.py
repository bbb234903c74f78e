"""`emberge diff` shows two models' distances, and writes all numbers as JSON."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from emberge.cli.main import main


@pytest.fixture
def place(bert: Path, berts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the models base, a and b."""
    for name, folder in zip(("base", "a", "b"), (bert, *berts), strict=False):
        (tmp_path / name).symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_table_and_json_of_two_models(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["diff", "a", "./b", "--base", "base", "--json", "d.json"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split() for line in lines if line}
    found = json.loads((place / "d.json").read_text())
    assert list(found["layers"])[:4] == ["E", "0", "1", "2"]
    for layer in ("E", "0", "1", "2"):
        total = found["layers"][layer]["total"]
        assert rows[layer][1] == f"{total['cosine']:.4f}"
        assert 0 < total["changes"]["norm_first"] != total["changes"]["norm_second"] > 0


def test_low_cosines_are_remarked_on_and_equal_names_told_apart(
    place: Path, capsys: pytest.CaptureFixture[str], berts: list[Path]
) -> None:
    from tests.support import tiny

    tiny.checkpoint(place / "stranger", seed=9)
    assert main(["diff", "a", "stranger"]) == 0
    assert "below 0.7 in layers E, 0, 1, 2" in capsys.readouterr().out
    for folder, model in zip(("x", "y"), berts, strict=False):
        shutil.copytree(model, place / folder / "model")
    assert main(["diff", "./x/model", "./y/model"]) == 0
    title = capsys.readouterr().out.splitlines()[0]
    assert "x/model" in title
    assert "y/model" in title


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--json", "a/config.json/d.json"], "--json: a/config.json/d.json"),
        (["--json", "a"], "--json: a is a folder"),
        (["--base", "./nothing"], "./nothing"),
    ],
)
def test_what_cannot_be_done_is_refused_before_weights_are_read(
    words: list[str], said: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", "a", "b", *words]) in (1, 2)
    assert said in capsys.readouterr().err
