"""Links in OUT: `clean` follows none, and removes only what a run made."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from emberge import run_recipe
from emberge.results import find_leftovers, remove_leftovers

from tests.support.steps import Write, recipe, toy

THESIS = "a year of work\n"


@pytest.fixture
def thesis(tmp_path: Path) -> Path:
    """A file of the user's, elsewhere on the same disk."""
    path = tmp_path / "home" / "thesis.tex"
    path.parent.mkdir()
    path.write_text(THESIS)
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A run whose step was changed since: it has an old result."""
    place = tmp_path / "out"
    for word in ("first", "second"):
        run(place, word)
    return place


def run(place: Path, word: str = "second") -> None:
    run_recipe(recipe(a=Write(word=word)), place, toy())


def remove_all(place: Path) -> None:
    remove_leftovers(place, [one.path for one in find_leftovers(place)])


@pytest.mark.parametrize("name", [".work", ".store"])
def test_clean_enters_no_link_and_removes_nothing_behind_one(
    out: Path, thesis: Path, name: str
) -> None:
    behind = thesis.parent
    for other in (".bashrc", "step-0123abcd/notes", f".a.{16 * '0'}.part"):
        (behind / other).parent.mkdir(exist_ok=True)
        (behind / other).write_text(THESIS)
    shutil.rmtree(out / name)
    (out / name).symlink_to(behind)
    assert [one.description for one in find_leftovers(out)] == ["old result"]
    remove_all(out)
    assert len(list(behind.rglob("*"))) == 5
    assert (out / name).is_symlink()


def test_clean_removes_only_what_a_run_made(out: Path, thesis: Path) -> None:
    remove_all(out)
    mine = [
        out / ".store" / ".notes",
        out / ".store" / ".git" / "config",
        out / ".work" / "notes.txt",
        out / ".work" / "notes" / "a",
        out / "photos-20240101" / "a.png",
    ]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    (out / "photos").symlink_to("nowhere")
    (out / ".work" / "a-0123abcd").symlink_to(thesis.parent)
    assert find_leftovers(out) == []
    assert all(path.is_file() for path in mine)


def test_links_inside_what_is_removed_are_not_entered(out: Path, thesis: Path) -> None:
    (old,) = (one.path for one in find_leftovers(out))
    (old / "home").symlink_to(thesis.parent)
    remove_all(out)
    assert not old.exists()
    assert thesis.read_text() == THESIS
