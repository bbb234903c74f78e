"""Where a verb writes is checked before it works, and its messages have no raw errors and no empty sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
from emberge import RecipeError
from emberge.cli.arguments import parse
from emberge.cli.main import main

RUN = ["run", "recipe.yaml", "--out", "out", "--summary"]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    return tmp_path


@pytest.mark.parametrize("path", ["file/inside", "."])
def test_a_file_that_cannot_be_written_is_refused_before_the_recipe_is_read(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, path]) == 2
    said = capsys.readouterr().err
    assert f"argument {RUN[-1]}: {path}" in said
    assert "recipe.yaml" not in said


def test_a_missing_folder_of_an_output_is_made(place: Path) -> None:
    main([*RUN, "new/folder/summary.md"])  # there is no recipe
    assert (place / "new/folder").is_dir()


def test_missing_words_are_named_and_after_two_dashes_none_is_an_option() -> None:
    with pytest.raises(RecipeError, match="arguments are required: RECIPE, --out"):
        parse(["run"], {})
    assert parse(["list", "--", "--kind"], {}).having == ["--kind"]
