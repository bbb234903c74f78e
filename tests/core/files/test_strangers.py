"""Untrusted files: only regular files of bounded size are read, and links stay inside."""

import os
from pathlib import Path

import pytest
from emberge import EmbergeError
from emberge.errors import UnsoundFileError
from emberge.files import open_regular, read_json, read_regular, require_inside
from emberge_data import open_data_file


def test_a_fifo_or_device_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(UnsoundFileError, match=r"config\.json: not a regular file"):
        open_regular(tmp_path / "config.json")
    for path in (Path("/dev/zero"), tmp_path):
        with pytest.raises(UnsoundFileError, match="not a regular file"):
            read_regular(path, limit=10)


def test_a_file_beyond_the_limit_is_refused_even_if_it_grows_while_read(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_regular(file, limit=5) == b"12345"
    with pytest.raises(UnsoundFileError, match="at most 4 bytes"):
        read_regular(file, limit=4)
    # The kernel gives its own files a length of 0, whatever is in them.
    with pytest.raises(UnsoundFileError, match="at most 3 bytes"):
        read_regular(Path("/proc/self/status"), limit=3)


@pytest.mark.parametrize("name", ["config.json", "rows.jsonl.gz", "rows.csv", "rows.parquet"])
def test_a_git_lfs_pointer_is_named_in_the_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 101304\n")
    with pytest.raises(EmbergeError, match=rf"{name}: a pointer of Git LFS .*`git lfs pull`"):
        read_json(path) if name == "config.json" else open_data_file(path)
    path.write_text("version of something else")
    open_regular(path).close()


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000])
def test_invalid_json_is_a_value_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError):  # noqa: PT011 - any text of the decoder
        read_json(tmp_path / "file")


def test_a_link_must_stay_inside_its_roots(tmp_path: Path) -> None:
    model, cache = tmp_path / "model", tmp_path / "cache"
    model.mkdir()
    cache.mkdir()
    for name, target in {
        "inside": model / "file",
        "blob": cache / "blob",
        "out": tmp_path / "secret",
    }.items():
        target.write_text("x")
        (model / name).symlink_to(target)
    assert require_inside(model / "inside", model) == model / "file"
    assert require_inside(model / "blob", model, cache) == cache / "blob"
    with pytest.raises(UnsoundFileError, match=r"model/out: links to .*secret"):
        require_inside(model / "out", model, cache)
