"""Where a verb writes is checked before it works, and its messages have no raw errors and no empty sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from emberge import RecipeError, load_plugins, parse_recipe
from emberge.cli.main import main
from emberge_data import ChoiceOptions, Space, choose

from tests.support.passages import passages

VERBS = {
    "diff": ["diff", "./a", "./b", "--json"],
    "page": ["diff", "./a", "./b", "--page"],
    "thresholds": ["thresholds", "./a", "./b", "--at", "0.5", "--json"],
    "space": ["space", "./a", "./b", "--json"],
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


def test_two_outputs_are_two_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*VERBS["diff"], "d.out", "--page", "./d.out"]) == 2
    assert "--json and --page are one file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ("{a: {logspace: [1, 2, 1000000000]}}", "2,000"),
        ("{a: {logspace: [1, 2, 1000]}, b: {logspace: [1, 2, 1000]}}", "1,000,000"),
    ],
)
def test_a_sweep_too_large_for_any_memory_is_refused_with_its_count(
    values: str, count: str
) -> None:
    text = f"steps:\n  a:\n    foreach: {values}\n    train: {{model: ./m, data: ./d}}\n"
    with pytest.raises(RecipeError, match=rf"r\.yaml:3: foreach.*{count}"):
        parse_recipe(text, load_plugins(), path=Path("r.yaml"))


def test_ranks_beyond_the_last_passage_take_no_memory() -> None:
    near = np.eye(2, dtype=np.float32)
    space = Space(near[:1], near)
    given = passages(space, [[0]])
    choice = ChoiceOptions(count=1, ranks=(1, 2**40), margin=None)
    assert choose([space], np.arange(1), given, choice).places.tolist() == [[1]]
