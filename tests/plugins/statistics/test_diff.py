"""`emberge diff` shows two models' distances."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from emberge.cli.main import main


@pytest.fixture
def place(bert: Path, berts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the models base, a and b."""
    for name, folder in zip(("base", "a", "b"), (bert, *berts), strict=False):
        (tmp_path / name).symlink_to(folder)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_table_of_two_models_and_their_base(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", "a", "./b", "--base", "base"]) == 0
    _, titles, head, *rows = capsys.readouterr().out.splitlines()
    assert "changes from the base" in titles
    assert head.split()[:3] == ["layer", "total", "attention"]
    assert [row.split()[0] for row in rows] == ["E", "0", "1", "2", "pooler", "mean"]
    assert all(float(number) > 0 for number in rows[1].split()[-4:-1])


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


def test_a_missing_model_is_named(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["diff", "a", "b", "--base", "./nothing"]) in (1, 2)
    assert "./nothing" in capsys.readouterr().err
    monkeypatch.setattr("emberge_hub.hub.fetch_from_hub", Mock(side_effect=ConnectionError("away")))
    assert main(["diff", "a", "e1/trained"]) == 2
    assert "'e1/trained': away, and there is no folder ./e1/trained" in capsys.readouterr().err
