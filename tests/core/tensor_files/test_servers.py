"""Files of web servers, hubs and buckets: what is known of them, what is refused, what is asked again."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from emberge import CheckpointError
from emberge.tensor_files import ServerFile, server_file
from emberge.tensor_files.server_file import UnreachableError

from tests.support.hostile_server import Request, answer, hostile
from tests.support.loopback_hub import hub_at
from tests.support.range_server import COMMIT, serving_ranges

ETAG = 'ETag: "one"'
WEIGHTS = "model.safetensors"


@pytest.fixture(autouse=True)
def _fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(server_file, "_WAITS", (0.001,) * 7)


def at(url: str, size: int = 1000) -> ServerFile:
    return ServerFile(f"{url}/model.safetensors", size, '"one"')


def ranged(request: Request, body: bytes, *headers: str, size: int = 1000) -> bytes:
    start, end = request.range
    span = f"Content-Range: bytes {start}-{end - 1}/{size}"
    return answer("206 Partial Content", body, span, *(headers or (ETAG,)))


# ── more than was asked for ─────────────────────────────────────────────────────────────────────


def test_a_server_that_ignores_ranges_is_refused_at_once() -> None:
    def whole_and_more(_: Request) -> Iterator[bytes]:
        yield answer("200 OK", bytes(4096), ETAG, length=5_300_000_000)

    with hostile(whole_and_more) as server:
        with pytest.raises(CheckpointError, match=r"model\.safetensors.* does not give it .*range"):
            at(server.url).read(50, 150)
        assert len(server.requests) == 1


def test_an_endless_file_is_not_copied() -> None:
    """A server that announces terabytes for a config, in the answer to HEAD."""

    def reply(_: Request) -> Iterator[bytes]:
        yield answer("200 OK", b"", ETAG, length=5 << 40)

    with hostile(reply) as server:
        file = ServerFile.look_up(f"{server.url}/config.json")
        assert file is not None
        with pytest.raises(CheckpointError, match=r"config\.json: has 5.*TB.*at most"):
            file.read_json()
        with pytest.raises(CheckpointError, match="at most"):
            file.copy(Path("config.json"))
        assert len(server.requests) == 1


# ── fewer bytes than were asked for ─────────────────────────────────────────────────────────────


def test_a_short_read_is_asked_for_again_and_never_taken() -> None:
    whole = bytes(range(100))
    bodies = [whole[:99], whole[:1], b"", whole]

    def reply(request: Request) -> Iterator[bytes]:
        body = bodies[min(len(server.requests), 4) - 1]
        yield ranged(request, body).replace(f"Length: {len(body)}".encode(), b"Length: 100")
        if len(body) < 100:
            raise OSError  # closes the connection

    with hostile(reply) as server:
        assert at(server.url).read(0, 100) == whole
        assert len(server.requests) == 4


@pytest.mark.parametrize("announced", [True, False], ids=["cut off", "announced as short"])
def test_a_server_that_always_sends_too_little_is_given_up(announced: bool) -> None:
    def reply(request: Request) -> Iterator[bytes]:
        whole = ranged(request, bytes(99))
        yield whole.replace(b"Length: 99", b"Length: 100") if announced else whole
        raise OSError

    with hostile(reply) as server:
        with pytest.raises(UnreachableError, match="8 times"):
            at(server.url).read(0, 100)
        assert len(server.requests) == 8


# ── servers that are nobody, and those that wait ────────────────────────────────────────────────


def test_an_unknown_name_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(server_file, "_WAITS", (60.0,))
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(UnreachableError, match=r"nowhere\.example/m: no connection"):
        ServerFile.look_up("https://nowhere.example/m")


# ── what is kept of a server ────────────────────────────────────────────────────────────────────


# ── hubs and buckets ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root" / "owner" / "m"
    folder.mkdir(parents=True)
    (folder / WEIGHTS).write_bytes(bytes(range(200)))
    (folder / "config.json").write_text("{}")
    return tmp_path / "root"


def test_a_hub_gives_size_version_and_hash_and_its_files_are_read_in_part(
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
        assert config.read_json() == {}
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


def test_a_bucket_gives_size_and_version_and_its_files_stay_open(bucket: Bucket) -> None:
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


def test_a_file_of_a_bucket_that_failed_is_opened_again(bucket: Bucket) -> None:
    file = ServerFile("s3://b/m", 100, "one")
    assert file.read(0, 1) == b"\0"
    bucket.failures = [OSError("cut")]
    assert file.read(0, 1) == b"\0"
    assert bucket.opened == 2


def test_what_a_bucket_does_not_have_is_none_and_what_fails_is_asked_again(bucket: Bucket) -> None:
    bucket.failures = [FileNotFoundError("b/m")]
    assert ServerFile.look_up("s3://b/m") is None
    hidden = FileNotFoundError("b/m")
    hidden.__cause__ = OSError("throttled")
    bucket.failures = [hidden]
    assert ServerFile.look_up("s3://b/m") is not None


def test_a_client_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_the_version_of_a_buckets_file_is_the_first_that_its_client_gives(
    info: dict[str, Any], size: int, version: str
) -> None:
    file = ServerFile._build_file("s3://b/m", info, threading.Event())
    assert (file.size, file.version) == (size, version)


# ── errors of clients ───────────────────────────────────────────────────────────────────────────


class RefusedError(OSError):
    """An error of a web server's client, or of a hub's, which has the status in its response."""

    def __init__(self, status: int, *, of_hub: bool = False) -> None:
        super().__init__("client")
        self.status = None if of_hub else status
        self.response = SimpleNamespace(status_code=status) if of_hub else None


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RefusedError(403), r"does not give it \(403\); see to its address, log in"),
        (RefusedError(404, of_hub=True), r"does not give it \(404\)"),
        (PermissionError(), r"does not give it \(no permission\)"),
        (FileNotFoundError("b/m"), r"does not give it \(b/m\)"),
        (ConnectionRefusedError(), "no connection"),
    ],
)
def test_refusals_of_a_client_are_not_asked_again(
    error: Exception, words: str, bucket: Bucket
) -> None:
    bucket.failures = [error]
    with pytest.raises(CheckpointError, match=words):
        ServerFile("s3://b/m", 100, "one").read(0, 10)
    assert bucket.opened == 1


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_failures_that_pass_are_asked_again(status: int, bucket: Bucket) -> None:
    wrapped = OSError("of another library")
    wrapped.__cause__ = RefusedError(status)
    bucket.failures = [RefusedError(status, of_hub=True), wrapped]
    assert ServerFile("s3://b/m", 100, "one").read(0, 1) == b"\0"
    assert bucket.opened == 3


def test_a_comparison_at_the_end_ends_with_the_work() -> None:
    with hostile(lambda _: iter([answer("503 Unavailable")])) as server:
        file = ServerFile(f"{server.url}/m", 100, "v")
        file.stop.set()
        with pytest.raises(UnreachableError):
            file.require_unchanged()
        assert len(server.requests) <= 2
