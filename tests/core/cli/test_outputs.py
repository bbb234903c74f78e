"""Where a verb writes is checked before it works, and its messages have no raw errors and no empty sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
from emberge.cli.main import main

VERBS = {
    "diff": ["diff", "./a", "./b", "--json"],
    "page": ["diff", "./a", "./b", "--page"],
    "run": ["run", "recipe.yaml", "--out", "out", "--summary"],
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    return tmp_path


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("path", ["file/inside", "."])
def test_a_file_that_cannot_be_written_is_refused_before_models_are_looked_for(
    verb: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = VERBS[verb]
    assert main([*words, path]) == 2
    said = capsys.readouterr().err
    assert f"argument {words[-1]}: {path}" in said
    assert "./a" not in said


def test_a_missing_folder_of_an_output_is_made(place: Path) -> None:
    main([*VERBS["diff"], "new/folder/diff.json"])  # there are no models
    assert (place / "new/folder").is_dir()
