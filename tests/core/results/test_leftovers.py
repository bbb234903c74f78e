"""`emberge clean`: old results and left work go, what is current or in use stays, nothing goes unasked."""

from __future__ import annotations

import json
import os
import pty
import shutil
import sys
from pathlib import Path

import pytest
from emberge import ModelRef, run_recipe
from emberge.cli.main import main
from emberge.errors import EmbergeError, OutInUseError
from emberge.files import FileLock
from emberge.results import find_leftovers, remove_leftovers

from tests.support.fixture_types import Capture, Patch
from tests.support.locked import other_process_holding
from tests.support.steps import RAN, Write, recipe, toy


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A finished run of `a` and `b`."""
    place = tmp_path / "out"
    run(place, a=Write(word="first"), b=Write(word="b", of=(ModelRef("$a"),)))
    return place


def run(place: Path, **steps: Write) -> None:
    run_recipe(recipe(**steps), place, toy())


def tree(folder: Path) -> dict[str, bytes | str | None]:
    """Every path below a folder with its content: bytes, or where a link leads."""
    found: dict[str, bytes | str | None] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = os.readlink(path)
        else:
            found[name] = path.read_bytes() if path.is_file() else None
    return found


def listed(place: Path) -> dict[str, str]:
    """What can be removed, by its path from OUT, with what it is called."""
    return {os.path.relpath(one.path, place): one.description for one in find_leftovers(place)}


def remove_all(place: Path) -> list[Path]:
    """Remove what can be removed, and return its paths."""
    confirmed = [one.path for one in find_leftovers(place)]
    return [one.path for one in remove_leftovers(place, confirmed)]


def changed(place: Path) -> str:
    """Run `a` with other options, and return the name of its old result."""
    old = os.readlink(place / "a")
    run(place, a=Write(word="second"))
    return old


def test_linked_results_and_folders_of_no_run_are_not_removed(out: Path) -> None:
    assert listed(out) == {}
    for name in ("notes", "notes-0123abcd", "a-copy"):
        (out / name).mkdir()
        (out / name / "notes.txt").write_text("mine")
    shutil.copytree(out / "a", out / "mine-0123abcd")  # a result, but not under its own name
    assert listed(out) == {}
    old = changed(out)
    (out / "best").symlink_to(Path(old) / "config.json")
    assert listed(out) == {}


def test_results_that_no_link_leads_to_are_removed_and_all_else_stays(out: Path) -> None:
    old = changed(out)
    before = tree(out)
    assert listed(out) == {old: "old result"}
    sizes = [len(c) for n, c in before.items() if n.startswith(old) and c]
    assert find_leftovers(out)[0].size == sum(sizes)
    remove_all(out)
    kept = {n: c for n, c in before.items() if n.partition("/")[0] != old}
    assert tree(out) == kept
    assert json.loads((out / "a" / "config.json").read_text())["text"] == "second"
    assert listed(out) == {}


def test_work_that_the_last_run_would_continue_is_kept_and_older_work_is_removed(
    tmp_path: Path,
) -> None:
    place = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run(place, a=Write(word="one", stop_at=2))
    with pytest.raises(KeyboardInterrupt):
        run(place, a=Write(word="two", stop_at=2))
    assert [*listed(place).values()] == ["old work"]
    remove_all(place)
    assert len(list((place / ".work").iterdir())) == 1
    run(place, a=Write(word="two", stop_at=2))
    rows = (place / "a" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["at"] for row in rows] == [0, 1, 2], "it went on where it had stopped"


def test_nothing_is_removed_while_a_run_is_working(out: Path) -> None:
    changed(out)
    before = tree(out)
    with other_process_holding(out) as pid:
        for call in (lambda: find_leftovers(out), lambda: remove_leftovers(out, [])):
            with pytest.raises(OutInUseError, match=f"{out}.*process {pid}"):
                call()
    after = tree(out)
    assert {n: c for n, c in after.items() if n != ".lock"} == {
        n: c for n, c in before.items() if n != ".lock"
    }


def test_work_that_a_process_has_locked_is_kept(out: Path) -> None:
    work = out / ".work" / "gone-0123abcd"
    work.mkdir()
    with FileLock(work / ".lock").lock():
        assert find_leftovers(out) == []
    assert listed(out) == {".work/gone-0123abcd": "old work"}


def test_what_became_current_after_it_was_listed_is_not_removed(out: Path) -> None:
    changed(out)
    confirmed = [one.path for one in find_leftovers(out)]
    run(out, a=Write(word="first"))
    assert remove_leftovers(out, confirmed) == []
    assert json.loads((out / "a" / "config.json").read_text())["text"] == "first"


def test_an_interrupted_removal_leaves_no_folder_that_looks_complete(
    out: Path, monkeypatch: Patch
) -> None:
    old = changed(out)

    def fails(path: Path, **_: object) -> None:
        raise OSError(13, "Permission denied", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", fails)
        with pytest.raises(EmbergeError, match="cannot be removed"):
            remove_all(out)
    assert not (out / old).exists()
    assert listed(out) == {}
    RAN.clear()
    run(out, a=Write(word="first"))
    assert RAN == ["a"]
    assert list(out.glob("*.part")) == [], "the next run removes the rest"


@pytest.mark.parametrize(("answer", "goes"), [(b"y\n", True), (b"\n", False)])
def test_clean_asks_at_a_terminal(
    out: Path, answer: bytes, goes: bool, monkeypatch: Patch, capsys: Capture
) -> None:
    old = changed(out)
    ours, theirs = pty.openpty()
    os.write(ours, answer)
    with open(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        assert main(["clean", str(out)]) == 0
    os.close(ours)
    said = capsys.readouterr().out
    assert old in said
    assert "[y/N]" in said
    assert (out / old).exists() is not goes


def test_clean_without_a_terminal_needs_yes(out: Path, capsys: Capture, monkeypatch: Patch) -> None:
    old = changed(out)
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        link = out.with_name("link")
        link.symlink_to(out)
        assert main(["clean", str(link)]) == 2
        said = capsys.readouterr()
        assert said.out.splitlines()[0].endswith(f"  {old}"), "also where OUT is a link"
        assert "--yes" in said.err
        assert (out / old).is_dir()
        assert main(["clean", str(out), "--yes"]) == 0
        assert not (out / old).exists()
        assert main(["clean", str(out)]) == 0, "there is nothing to ask about"
        assert capsys.readouterr().out.endswith("there is nothing to remove\n")
