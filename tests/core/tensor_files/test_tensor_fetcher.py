"""Blocks of files on servers are fetched once each, and notes of such files are read and written."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from emberge import CheckpointError
from emberge.tensor_files import RemoteFile, ServerFile, TensorSpec, read_header, tensor_fetcher
from emberge.tensor_files.tensor_fetcher import TensorFetcher
from safetensors.numpy import save_file

from tests.support.loopback_hub import hub_at
from tests.support.range_server import COMMIT, serving_ranges

BLOCK = 256


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for notes; blocks are small."""
    monkeypatch.setattr(tensor_fetcher, "_BLOCK_BYTES", BLOCK)
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


def served(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    tensors = {f"t{n}": np.arange(n * 50, dtype=np.float32) + n for n in range(1, 10)}
    (folder / "owner" / "m").mkdir(parents=True)
    save_file(tensors, folder / "owner" / "m" / "model.safetensors")
    return folder, tensors


def noted(folder: Path) -> dict[str, TensorSpec]:
    found = ServerFile.look_up(f"hf://owner/m@{COMMIT}/model.safetensors")
    assert found is not None
    note = found.build_note().write(folder / "model.safetensors")
    assert RemoteFile.is_note(note)
    assert RemoteFile.find(folder / "model.safetensors") == note
    return read_header(note)[0]


def test_many_threads_fetch_each_byte_once(tmp_path: Path, cache: Path) -> None:
    root, tensors = served(tmp_path / "root")
    with serving_ranges(root) as server, hub_at(server.url, tmp_path / "home"):
        specs = noted(cache)
        header = server.sent["owner/m/model.safetensors"]
        fetcher = TensorFetcher()
        try:
            fetcher.expect([[specs["t3"]], [specs["t8"], specs["t3"]]])  # the rest is not announced

            def read(name: str) -> bool:
                spec = specs[name]
                begin, end = spec.offset, spec.offset + spec.nbytes
                handle = fetcher.open_fetched(spec, begin, end)
                content = np.frombuffer(os.pread(handle, end - begin, begin), np.float32)
                return bool((content == tensors[name]).all())

            names = [name for name in tensors if name != "t9"] * 4
            with ThreadPoolExecutor(8) as threads:
                assert all(threads.map(read, names))
            (account,) = fetcher.verify()
            (copy,) = fetcher._copies.values()
        finally:
            fetcher.close()
        assert copy._file.closed
        with pytest.raises(RuntimeError):
            fetcher._pool.submit(int)
        sent = server.sent["owner/m/model.safetensors"] - header
    read = [spec for name, spec in specs.items() if name != "t9"]
    blocks = {byte // BLOCK for s in read for byte in range(s.offset, s.offset + s.nbytes)}
    first = min(spec.offset for spec in read)  # the note has the header before it
    assert account.fetched == (len(blocks) + first // BLOCK) * BLOCK < account.size
    assert sent == len(blocks) * BLOCK
    assert account.checked == ""
    assert sorted(p.name for p in cache.iterdir()) == ["model.safetensors.remote"]


def test_a_damaged_note_is_an_error_with_a_remedy(cache: Path) -> None:
    note = RemoteFile("s3://x/m", 10, "v", None, b"{}").write(cache / "model.safetensors")
    assert RemoteFile.read(note).header == b"{}"
    for damage in ("{", "[]", '{"url": 1}'):
        note.write_text(damage)
        with pytest.raises(CheckpointError, match=r"model\.safetensors\.remote.*remove its folder"):
            RemoteFile.read(note)


@pytest.mark.parametrize("sha256", [None, "12ab"])
def test_a_note_that_is_written_and_read_is_the_same(sha256: str | None, cache: Path) -> None:
    file = RemoteFile("s3://x/m", 10, "v", sha256, bytes(range(256)))
    note = file.write(cache / "model.safetensors")
    assert note == cache / "model.safetensors.remote"
    assert RemoteFile.read(note) == file
    assert file.content == (sha256 or "s3://x/m 10 v")
    assert not RemoteFile.is_note(note.with_suffix(""))
    assert RemoteFile.find(note.with_name("other.safetensors")) is None
