"""A large file is hashed once for a user and machine, under any name; a noted one is never read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from emberge.files import find_user_cache
from emberge.hashes import (
    LARGE_FILE_BYTES,
    WRITERS_CACHE,
    FileContent,
    HashCache,
    hash_file,
    noting_hashes,
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder, in use."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("EMBERGE_HASH_CACHE")
    # Files that changed this moment are not trusted; those of a test are all that young.
    monkeypatch.setattr("emberge.hashes._FRESH_NANOSECONDS", -(1 << 62))
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(os.urandom(LARGE_FILE_BYTES))
    return path


def reads(*files: Path) -> tuple[list[str], int]:
    """Hash files for a new OUT, and return the hashes and how many large files were read for them."""
    read: list[int] = []
    hashes = HashCache(find_user_cache(), lambda: read.append(1))
    found = [hashes.of(file) for file in files]
    hashes.save()
    return found, len(read)


def test_a_large_file_is_hashed_once_under_any_name(cache: Path, file: Path) -> None:
    first, read = reads(file)
    assert read == 1
    assert reads(file) == (first, 0)
    assert first == [HashCache().of(file)]
    reads(file)
    link = file.with_name("link")  # as the hub's cache has them
    link.symlink_to(file)
    assert reads(link)[1] == 0


def rewrite(path: Path) -> None:
    status = path.stat()
    path.write_bytes(bytes(status.st_size))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(bytes(path.stat().st_size))
    other.rename(path)


@pytest.mark.parametrize("change", [rewrite, replace])
def test_a_changed_file_is_hashed_again_whatever_its_date(
    cache: Path, file: Path, change: Callable[[Path], None]
) -> None:
    first, _ = reads(file)
    change(file)
    second, read = reads(file)
    assert read == 1
    assert second != first
    assert second == [HashCache().of(file)]


def test_a_file_that_has_just_changed_is_not_remembered(
    cache: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emberge.hashes._FRESH_NANOSECONDS", 1 << 62)
    reads(file)
    assert reads(file)[1] == 1


def test_hashes_of_simultaneous_runs_are_all_kept(cache: Path, file: Path) -> None:
    other = file.with_name("other")
    other.write_bytes(os.urandom(LARGE_FILE_BYTES))
    one, two = (HashCache(find_user_cache()) for _ in range(2))
    one.of(file)
    two.of(other)
    one.save()
    two.save()
    assert reads(file, other)[1] == 0


def test_the_table_has_no_paths_and_drops_its_oldest_entries(
    cache: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emberge.hashes._MOST_FILES", 2)
    files = [file.with_name(f"{number}") for number in range(3)]
    for one in files:
        one.write_bytes(os.urandom(LARGE_FILE_BYTES))
        reads(one)
    table = (cache / "emberge" / "hashes.json").read_text()
    assert len(json.loads(table)) == 2
    assert str(file.parent) not in table
    assert reads(*files[1:])[1] == 0
    assert reads(files[0])[1] == 1


def test_hashes_of_small_files_are_not_kept_and_none_if_switched_off(
    cache: Path, tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    reads(tmp_path / "config.json")
    assert not cache.exists()
    reads(file)
    monkeypatch.setenv("EMBERGE_HASH_CACHE", "never")
    assert reads(file)[1] == 1


@pytest.mark.parametrize("content", ["{", "\udcff"])
def test_a_broken_table_is_replaced(cache: Path, file: Path, content: str) -> None:
    (cache / "emberge").mkdir(parents=True)
    (cache / "emberge" / "hashes.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    first, read = reads(file)
    assert read == 1
    assert reads(file) == (first, 0)


@pytest.mark.parametrize("home", ["", "elsewhere/relative"])
def test_without_a_cache_folder_nothing_is_kept(
    cache: Path, file: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", home)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert reads(file) == reads(file) == ([HashCache().of(file)], 1)


def test_only_files_without_a_note_are_read_also_if_their_folder_was_renamed(
    tmp_path: Path,
) -> None:
    (tmp_path / "side").mkdir()
    for name in ("a", "b"):
        (tmp_path / "side" / name).write_bytes(b"weights")
    hashes = HashCache()
    hashes.note(tmp_path / "side" / "a", "as noted")
    out = (tmp_path / "side").rename(tmp_path / "out")
    read = FileContent(7, hash_file(out / "b"))
    assert hashes.list_contents(out, leave_out="") == {"a": FileContent(7, "as noted"), "b": read}
    (out / "b").replace(out / "a")  # no longer the file that was noted
    assert hashes.list_contents(out, leave_out="") == {"a": read}


def test_links_hidden_files_and_the_file_left_out_are_not_listed(tmp_path: Path) -> None:
    for name in ("a", "left", ".hidden", "b/left", ".c/file"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"abc")
    (tmp_path / "link").symlink_to("a")
    assert list(HashCache().list_contents(tmp_path, leave_out="left")) == ["a", "b/left"]


def test_hashes_are_noted_only_inside_the_block() -> None:
    outer, inner = HashCache(), HashCache()
    assert WRITERS_CACHE.get() is None
    with noting_hashes(outer):
        with noting_hashes(inner):
            assert WRITERS_CACHE.get() is inner
        assert WRITERS_CACHE.get() is outer
    assert WRITERS_CACHE.get() is None
