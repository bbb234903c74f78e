"""Files of hubs and buckets: their facts, reading by ranges, refusals and failures."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from emberge import CheckpointError
from emberge.tensor_files import ServerFile
from emberge.tensor_files.server_file import UnreachableError

from tests.support.loopback_hub import hub_at
from tests.support.range_server import COMMIT, serving_ranges

WEIGHTS = "model.safetensors"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root" / "owner" / "m"
    folder.mkdir(parents=True)
    (folder / WEIGHTS).write_bytes(bytes(range(200)))
    (folder / "config.json").write_text("{}")
    return tmp_path / "root"


def test_a_hubs_file_has_size_version_and_hash_and_is_read_by_ranges(
    root: Path, tmp_path: Path
) -> None:
    address = f"hf://owner/m@{COMMIT}"
    sha256 = hashlib.sha256(bytes(range(200))).hexdigest()
    with serving_ranges(root) as server, hub_at(server.url, tmp_path / "home"):
        file = ServerFile.look_up(f"{address}/{WEIGHTS}")
        assert file is not None
        assert (file.size, file.version, file.sha256) == (200, sha256, sha256)
        assert file.read(50, 60) == bytes(range(50, 60))
        file.require_unchanged()
        config = ServerFile.look_up(f"{address}/config.json")
        assert config is not None
        assert config.sha256 is None
        assert config.version
        config.copy(tmp_path / "config.json")
        assert (tmp_path / "config.json").read_text() == "{}"
        assert ServerFile.look_up(f"{address}/gone.json") is None
        assert ServerFile.list_files(address).keys() == {WEIGHTS, "config.json"}


class Bucket:
    """A bucket's client, with what it was asked."""

    def __init__(self) -> None:
        self.content = bytes(range(100))
        self.info_ = {"size": 100, "ETag": "one"}
        self.opened = self.refreshed = 0
        self.place = 0
        self.failures: list[Exception] = []
        self.wait = threading.Event()
        self.wait.set()

    def invalidate_cache(self) -> None:
        self.refreshed += 1

    def info(self, path: str) -> dict[str, Any]:
        assert path == "b/m"
        if self.failures:
            raise self.failures.pop()
        return self.info_

    def find(self, path: str, *, detail: bool, refresh: bool) -> dict[str, Any]:
        assert detail
        assert refresh
        return {f"{path}/config.json": self.info_, f"{path}/1_Pooling/config.json": self.info_}

    def open(self, path: str, mode: str, *, cache_type: str) -> Bucket:
        assert (path, mode, cache_type) == ("b/m", "rb", "none")
        self.opened += 1
        return self

    def seek(self, place: int) -> None:
        self.place = place

    def read(self, count: int) -> bytes:
        self.wait.wait(20)
        if self.failures:
            raise self.failures.pop()
        return self.content[self.place : self.place + count]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    made = Bucket()
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda url: (made, url.removeprefix("s3://")))
    return made


def test_a_buckets_file_has_size_and_version_and_stays_open(bucket: Bucket) -> None:
    file = ServerFile.look_up("s3://b/m")
    assert file is not None
    assert (file.size, file.version, file.sha256) == (100, "one", None)
    assert bucket.refreshed == 1
    assert file.read(10, 13) == bytes([10, 11, 12])
    assert file.read(20, 21) == bytes([20])
    assert bucket.opened == 1
    bucket.info_ = {"size": 100, "LastModified": "two"}
    with pytest.raises(CheckpointError, match="has changed on its server"):
        file.require_unchanged()
    assert ServerFile.list_files("s3://b/m").keys() == {"config.json", "1_Pooling/config.json"}


def test_a_header_longer_than_its_file_is_refused_before_it_is_read(bucket: Bucket) -> None:
    with pytest.raises(CheckpointError, match="is truncated or no safetensors file, as its header"):
        ServerFile("s3://b/m", 100, "one").build_note()


def test_a_file_is_opened_again_after_a_failed_read(bucket: Bucket) -> None:
    file = ServerFile("s3://b/m", 100, "one")
    assert file.read(0, 1) == b"\0"
    bucket.failures = [OSError("cut")]
    with pytest.raises(UnreachableError):
        file.read(0, 1)
    assert file.read(0, 1) == b"\0"
    assert bucket.opened == 2


def test_a_missing_file_is_none_and_a_failure_is_an_error(bucket: Bucket) -> None:
    bucket.failures = [FileNotFoundError("b/m")]
    assert ServerFile.look_up("s3://b/m") is None
    hidden = FileNotFoundError("b/m")
    hidden.__cause__ = OSError("throttled")
    bucket.failures = [hidden]
    with pytest.raises(UnreachableError, match="throttled"):
        ServerFile.look_up("s3://b/m")


def test_a_missing_client_package_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise ImportError("Install s3fs")

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    with pytest.raises(CheckpointError, match=r"Install s3fs; pip install 'emberge\[remote\]'"):
        ServerFile.look_up("s3://b/m")


@pytest.mark.parametrize(
    ("info", "size", "version"),
    [
        ({"size": 5, "ETag": "a", "etag": "b", "Last-Modified": "c"}, 5, "a"),
        ({"size": "5", "ETag": "", "etag": "b", "LastModified": "c"}, 5, "b"),
        ({"size": 5, "LastModified": "c", "mtime": 7}, 5, "c"),
    ],
)
def test_the_version_is_the_first_that_the_client_has(
    info: dict[str, Any], size: int, version: str
) -> None:
    file = ServerFile._build_file("s3://b/m", info, threading.Event())
    assert (file.size, file.version) == (size, version)


# ── errors of clients ───────────────────────────────────────────────────────────────────────────


class RefusedError(OSError):
    """An error of a hub's client, which has the status in its response."""

    def __init__(self, status: int) -> None:
        super().__init__("client")
        self.response = SimpleNamespace(status_code=status)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (
            RefusedError(403),
            CheckpointError,
            r"does not give it \(403\); see to its address, log in",
        ),
        (PermissionError(), CheckpointError, r"does not give it \(no permission\)"),
        (FileNotFoundError("b/m"), CheckpointError, r"does not give it \(b/m\)"),
        (RefusedError(429), UnreachableError, "cannot be read .* try again later"),
        (RefusedError(503), UnreachableError, "cannot be read"),
        (ConnectionRefusedError(), UnreachableError, "see to the address"),
    ],
)
def test_errors_of_clients_are_told_apart_as_refusals_and_failures(
    error: Exception, kind: type[Exception], words: str, bucket: Bucket
) -> None:
    bucket.failures = [error]
    with pytest.raises(kind, match=rf"s3://b/m: .*{words}") as caught:
        ServerFile("s3://b/m", 100, "one").read(0, 10)
    assert type(caught.value) is kind


def test_a_range_with_too_few_bytes_is_a_failure(bucket: Bucket) -> None:
    with pytest.raises(UnreachableError, match="10 bytes in place of 50"):
        ServerFile("s3://b/m", 140, "one").read(90, 140)


def test_no_request_is_sent_after_stop(bucket: Bucket) -> None:
    file = ServerFile("s3://b/m", 100, "one")
    file.stop.set()
    with pytest.raises(UnreachableError, match="was ended"):
        file.require_unchanged()
    assert bucket.refreshed == 0
