"""Links, foreign files and files with second names in OUT: none is followed, emptied, extended or removed."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from emberge import run_recipe
from emberge.errors import EmbergeError
from emberge.files import (
    NotOursError,
    claim_folder,
    fill_once,
    lock_folder,
    open_ours,
    ours,
    replace_file,
    require_ours,
    wait_for_lock,
    working_in,
    write_text,
)
from emberge.recipes import status
from emberge.results import find_leftovers, read_artifact, remove_leftovers

from tests.support.steps import Write, recipe, toy

THESIS = "a year of work\n"
STRANGER = 54321


@pytest.fixture
def thesis(tmp_path: Path) -> Path:
    """A file of the user's, elsewhere on the same disk."""
    path = tmp_path / "home" / "thesis.tex"
    path.parent.mkdir()
    path.write_text(THESIS)
    return path


def make_foreign(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a file or folder to another user; where only root can, everything else is given to one."""
    if os.geteuid() == 0:
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
        return
    real = os.lstat(path)
    changed = os.stat_result((*real[:4], STRANGER, *real[5:10]))
    lstat = Path.lstat
    monkeypatch.setattr(Path, "lstat", lambda self: changed if self == path else lstat(self))


def lock(path: Path) -> None:
    with lock_folder(path):
        pass


def wait(path: Path) -> None:
    with wait_for_lock(path):
        pass


def append(path: Path) -> None:
    with open_ours(path, "ab") as file:
        file.write(b"more")


def change(path: Path) -> None:
    with open_ours(path, "rb+") as file:
        file.truncate(0)


def create(path: Path) -> None:
    with open_ours(path, "xb") as file:
        file.write(b"new")


@pytest.mark.parametrize("act", [lock, wait, append, change, create])
@pytest.mark.parametrize("planted", ["link", "hard link"])
def test_no_file_is_written_to_through_a_link(
    tmp_path: Path, thesis: Path, act: Callable[[Path], None], planted: str
) -> None:
    place = tmp_path / "planted"
    if planted == "link":
        place.symlink_to(thesis)
    else:
        os.link(thesis, place)
    with pytest.raises((NotOursError, FileExistsError)) as caught:
        act(place)
    assert act is create or str(place) in str(caught.value)
    assert thesis.read_text() == THESIS


def test_a_file_that_replaces_another_replaces_the_link_and_not_its_target(
    tmp_path: Path, thesis: Path
) -> None:
    (tmp_path / "a").symlink_to(thesis)
    write_text(tmp_path / "a", "new")
    assert not (tmp_path / "a").is_symlink()
    assert thesis.read_text() == THESIS


def test_side_names_cannot_be_guessed_and_what_has_one_already_is_never_opened(
    tmp_path: Path, thesis: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    for _ in range(2):
        with replace_file(tmp_path / "a") as side:
            side.write_text("")
            seen.add(side.name)
    assert len(seen) == 2
    (tmp_path / ".a.part").symlink_to(thesis)
    write_text(tmp_path / "a", "new")
    assert thesis.read_text() == THESIS
    monkeypatch.setattr("emberge.files.atomic.side_name", lambda _: ".planted")
    (tmp_path / ".planted").symlink_to(thesis)
    with pytest.raises(FileExistsError):
        write_text(tmp_path / "a", "new")
    assert thesis.read_text() == THESIS


@pytest.mark.parametrize("act", [lock, wait, append])
def test_a_pipe_in_the_place_of_a_file_is_refused_at_once(
    tmp_path: Path, act: Callable[[Path], None]
) -> None:
    os.mkfifo(tmp_path / "run.log")
    with pytest.raises((NotOursError, OSError)):
        act(tmp_path / "run.log")


@pytest.mark.parametrize("act", [lock, wait, append, change])
def test_a_folder_in_the_place_of_a_file_is_named(
    tmp_path: Path, act: Callable[[Path], None]
) -> None:
    (tmp_path / "run.log").mkdir()
    with pytest.raises(NotOursError, match=r"run\.log: is no regular file; move it elsewhere"):
        act(tmp_path / "run.log")


@pytest.mark.parametrize("act", [lock, wait, append, change])
def test_a_file_of_another_user_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[Path], None]
) -> None:
    file = tmp_path / "run.log"
    file.write_text(THESIS)
    if os.geteuid() == 0:
        os.chown(file, STRANGER, STRANGER)
    else:  # we are another user, and the disk does not answer otherwise
        monkeypatch.setattr(ours, "our_uid", lambda: STRANGER)
        monkeypatch.setattr(ours, "_sample_folder", lambda _: None)
    with pytest.raises(NotOursError, match=f"{file}: belongs to another user"):
        act(file)
    assert file.read_text() == THESIS


def test_folders_of_others_and_those_open_to_all_are_not_worked_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign, opened = tmp_path / "foreign", tmp_path / "open"
    foreign.mkdir()
    opened.mkdir()
    opened.chmod(0o777)
    make_foreign(foreign, monkeypatch)
    with pytest.raises(NotOursError, match=r"foreign: belongs to another user .*--out"):
        working_in(foreign).__enter__()
    with pytest.raises(NotOursError, match=r"open: everybody may write .*chmod"):
        working_in(opened).__enter__()
    with pytest.raises(NotOursError, match="another user"):
        fill_once(foreign, lambda _: None)
    opened.chmod(0o775)
    with working_in(opened):
        pass


@pytest.mark.parametrize("what", ["link", "folder link", "foreign file", "open file", "pipe"])
def test_work_is_continued_only_where_all_below_is_ours(
    tmp_path: Path, thesis: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    place = tmp_path / "work" / "states" / "planted"
    place.parent.mkdir(parents=True)
    (place.parent / "sound").write_text("")
    if what == "link":
        place.symlink_to(thesis)
    elif what == "folder link":
        place.symlink_to(thesis.parent)
    elif what == "pipe":
        os.mkfifo(place)
    else:
        place.write_text("")
        place.chmod(0o666 if what == "open file" else 0o664)
    if what == "foreign file":
        if os.geteuid() == 0:
            os.chown(place, STRANGER, STRANGER)
        else:  # we are another user, and the disk does not answer otherwise
            monkeypatch.setattr(ours, "our_uid", lambda: STRANGER)
            monkeypatch.setattr(ours, "_sample_folder", lambda _: None)
    with pytest.raises(NotOursError):
        working_in(tmp_path / "work").__enter__()


def test_where_every_file_has_another_owner_and_mode_those_are_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk of another system or of a network: what is created there has them as well."""
    place = tmp_path / "m"
    place.mkdir()
    place.chmod(0o777)
    monkeypatch.setattr(ours, "our_uid", lambda: STRANGER)
    if os.geteuid() == 0:
        os.chown(place, STRANGER + 1, -1)
    seen, real = list(place.lstat()[:10]), place.lstat()
    for mode, uid in ((seen[0], STRANGER + 2), (seen[0] & ~0o777, real.st_uid)):
        sample = os.stat_result((mode, *seen[1:4], uid, *seen[5:]))
        monkeypatch.setattr(ours, "_FOLDER_STATUS_BY_DISK", {real.st_dev: sample})
        with pytest.raises(NotOursError):
            require_ours(place)
    monkeypatch.setattr(ours, "_FOLDER_STATUS_BY_DISK", {real.st_dev: real})
    require_ours(place)


def test_a_disk_is_asked_once_and_nothing_is_left_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "_FOLDER_STATUS_BY_DISK", {})
    tmp_path.chmod(0o777)
    for _ in range(2):
        with pytest.raises(NotOursError):
            require_ours(tmp_path)
    assert len(ours._FOLDER_STATUS_BY_DISK) == 1
    assert list(tmp_path.iterdir()) == []
    tmp_path.chmod(0o700)


def test_what_is_created_is_never_open_to_everybody(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        claim_folder(tmp_path / "folder")
        write_text(tmp_path / "file", "")
        append(tmp_path / "log")
        fill_once(tmp_path / "deep" / "filled", lambda _: None)
    finally:
        os.umask(before)
    for path in (tmp_path, *tmp_path.rglob("*")):
        assert not path.stat().st_mode & stat.S_IWOTH, path


# ── runs ────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A run whose step was changed since: it has an old result."""
    place = tmp_path / "out"
    for word in ("first", "second"):
        run(place, word)
    return place


def run(place: Path, word: str = "second") -> None:
    run_recipe(recipe(a=Write(word=word)), place, toy())


@pytest.mark.parametrize("name", [".lock", "run.log", "metrics.jsonl"])
def test_a_run_refuses_links_where_its_files_belong(out: Path, thesis: Path, name: str) -> None:
    (out / name).unlink(missing_ok=True)
    (out / name).symlink_to(thesis)
    with pytest.raises(NotOursError, match=f"{name}: is a link to .*thesis"):
        run(out)
    assert thesis.read_text() == THESIS


@pytest.mark.parametrize("name", [".status.json", "recipe.yaml"])
def test_a_run_replaces_links_where_its_records_belong(out: Path, thesis: Path, name: str) -> None:
    (out / name).unlink(missing_ok=True)
    (out / name).symlink_to(thesis)
    run(out)
    assert thesis.read_text() == THESIS


@pytest.mark.parametrize("name", [".work", ".store"])
def test_a_run_refuses_folders_of_out_that_are_links(out: Path, thesis: Path, name: str) -> None:
    shutil.rmtree(out / name)
    (out / name).symlink_to(thesis.parent)
    with pytest.raises(NotOursError, match=f"{name}: is a link to .*choose an --out"):
        run(out)
    assert [path.name for path in thesis.parent.iterdir()] == [thesis.name]


def test_a_run_refuses_links_and_foreign_files_in_its_store(
    out: Path, thesis: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = out / ".store" / "tokens" / "abc"
    link.parent.mkdir()
    link.symlink_to(thesis.parent)
    with pytest.raises(NotOursError, match="abc: is a link"):
        run(out)
    link.unlink()
    run(out)
    make_foreign(out / ".store", monkeypatch)
    with pytest.raises(NotOursError, match="another user"):
        run(out)


def test_a_run_refuses_an_out_of_another_user(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_foreign(out, monkeypatch)
    with pytest.raises(NotOursError, match=f"{out}: belongs to another user"):
        run(out)


# ── clean ───────────────────────────────────────────────────────────────────────────────────────


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
    found = find_leftovers(out)
    assert [one.what for one in found.removable] == ["old result"]
    assert f"a link to {behind}, not entered" in "\n".join(found.lines)
    remove_leftovers(found)
    assert len(list(behind.rglob("*"))) == 5
    assert (out / name).is_symlink()


def test_clean_removes_only_what_a_run_made(out: Path, thesis: Path) -> None:
    remove_leftovers(find_leftovers(out))
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
    assert find_leftovers(out).removable == ()
    assert all(path.is_file() for path in mine)


def test_links_inside_what_is_removed_are_not_entered(out: Path, thesis: Path) -> None:
    (old,) = (one.paths[0] for one in find_leftovers(out).removable)
    (old / "home").symlink_to(thesis.parent)
    remove_leftovers(find_leftovers(out))
    assert not old.exists()
    assert thesis.read_text() == THESIS


def test_clean_shows_real_paths_and_refuses_folders_of_others(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(out)
    assert find_leftovers(tmp_path / "link").out == out.resolve()
    make_foreign(out, monkeypatch)
    with pytest.raises(NotOursError):
        find_leftovers(out)


def test_an_interrupted_merge_that_is_a_link_is_not_entered(tmp_path: Path, thesis: Path) -> None:
    (tmp_path / ".merged.merging").symlink_to(thesis.parent)
    (thesis.parent / ".work").mkdir()
    with pytest.raises(EmbergeError, match="holds no run"):
        find_leftovers(tmp_path / "merged")


# ── looking ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "look"),
    [
        (".status.json", status),
        (".lock", status),
        ("a/artifact.json", status),
        ("a/artifact.json", lambda out: read_artifact(out / "a")),
        ("a/artifact.json", run),
    ],
)
def test_a_pipe_in_out_keeps_nobody_waiting(
    out: Path, name: str, look: Callable[[Path], object]
) -> None:
    (out / name).unlink()
    os.mkfifo(out / name)
    with suppress(EmbergeError):
        look(out)
    assert stat.S_ISFIFO((out / name).lstat().st_mode) or look is run
