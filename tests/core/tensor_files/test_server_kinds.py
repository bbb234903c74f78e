"""Kinds of servers: what each gives of a file, and how its parts are read."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from emberge import CheckpointError
from emberge.network.request_errors import RequestStoppedError
from emberge.tensor_files import ServerFile, server_file, server_kinds

from tests.support.hostile_server import Request, answer, hostile
from tests.support.loopback_hub import hub_at
from tests.support.range_server import COMMIT, serving_ranges

WEIGHTS = "model.safetensors"


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_file, "_WAITS", (0.001,) * 7)


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
        assert ServerFile.list_files(address).keys() == {
            f"{address}/{WEIGHTS}",
            f"{address}/config.json",
        }
        for wrong in ("hf://owner/m", "hf://owner/m@main/config.json"):
            with pytest.raises(CheckpointError, match="no address of a file on a hub"):
                ServerFile.look_up(wrong)


def test_the_token_goes_to_the_hub_and_not_to_its_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_" + "a" * 34)

    def part(request: Request) -> Iterator[bytes]:
        start, end = request.range
        span = f"Content-Range: bytes {start}-{end - 1}/100"
        return iter([answer("206 OK", bytes(end - start), span)])

    with (
        hostile(part) as storage,
        hostile(lambda _: iter([answer("302 Found", b"", f"Location: {storage.url}/x")])) as hub,
        hub_at(hub.url, tmp_path / "home"),
    ):
        ServerFile(f"hf://owner/m@{COMMIT}/{WEIGHTS}", 100, "v").read(0, 10)
        assert hub.requests[0].headers["authorization"].startswith("Bearer hf_")
        assert "authorization" not in storage.requests[0].headers


# ── buckets ─────────────────────────────────────────────────────────────────────────────────────


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
    assert ServerFile.list_files("s3://b/m").keys() == {
        "s3://b/m/config.json",
        "s3://b/m/1_Pooling/config.json",
    }


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


# ── sizes and hashes ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", ["-1", "1e3", "٣", "9" * 19, "", None, 1.5, "+5"])
def test_what_is_no_size_is_none(size: object) -> None:
    assert server_kinds._read_count(size) is None


def test_a_size_is_a_count_of_bytes() -> None:
    assert [server_kinds._read_count(size) for size in (0, " 12 ", "9" * 18)] == [
        0,
        12,
        int("9" * 18),
    ]


def test_the_hash_of_a_web_server_is_read_where_it_is_one() -> None:
    digest = hashlib.sha256(b"x").hexdigest()
    assert (
        server_kinds._decode_digest(
            "md5=AAAA, SHA-256=LXEWQrcmsEQBYnyp+6wy9chTD7GQPMTbAiWHF5IaSIE="
        )
        == digest
    )
    for wrong in ("", "sha-256=?", "sha-256=AAAA", "md5=AAAA"):
        assert server_kinds._decode_digest(wrong) is None


@pytest.mark.parametrize(
    ("info", "size", "version"),
    [
        ({"size": 5, "ETag": "a", "etag": "b", "Last-Modified": "c"}, 5, "a"),
        ({"size": "5", "ETag": "", "etag": "b", "LastModified": "c"}, 5, "b"),
        ({"size": 5, "LastModified": "c", "mtime": 7}, 5, "c"),
        ({"size": 5, "Last-Modified": "d", "LastModified": "c"}, 5, "d"),
        ({"size": None, "mtime": 7}, None, "7"),
        ({}, None, None),
    ],
)
def test_the_version_of_a_buckets_file_is_the_first_that_its_client_gives(
    info: dict[str, Any], size: int | None, version: str | None
) -> None:
    assert server_kinds._read_bucket_facts(info) == server_kinds.ServerFacts(size, version)


@pytest.mark.parametrize(
    ("version", "asked"),
    [('"one"', '"one"'), ('W/"one"', None), ("Tue, 01 Jan 2030 00:00:00 GMT", None), ("", None)],
)
def test_a_read_names_its_range_and_a_version_that_fits_one_content(
    version: str, asked: str | None
) -> None:
    def part(request: Request) -> Iterator[bytes]:
        start, end = request.range
        return iter([answer("206 OK", b"ab", f"Content-Range: bytes {start}-{end - 1}/100")])

    with hostile(part) as server:
        assert ServerFile(f"{server.url}/a b?c d#e", 100, version).read(5, 7) == b"ab"
        (request,) = server.requests
    assert (request.method, request.path) == ("GET", "/a%20b?c%20d")
    wanted = {"range": "bytes=5-6", "accept-encoding": "identity"}
    if asked is not None:
        wanted["if-match"] = asked
    assert {name: request.headers[name] for name in wanted} == wanted
    assert request.headers.keys() == {*wanted, "host", "connection", "user-agent"}


@pytest.mark.parametrize(
    ("headers", "facts"),
    [
        (["ETag: x", "Last-Modified: y"], server_kinds.ServerFacts(3, "x")),
        (["Last-Modified: y", "Digest: md5=A"], server_kinds.ServerFacts(3, "y")),
        ([], server_kinds.ServerFacts(3, None)),
    ],
)
def test_the_facts_of_a_web_servers_file_are_its_headers(
    headers: list[str], facts: server_kinds.ServerFacts
) -> None:
    with hostile(lambda _: iter([answer("200 OK", b"", *headers, length=3)])) as server:
        assert server_kinds.server_of(f"{server.url}/m").look() == facts
    assert [request.method for request in server.requests] == ["HEAD"]


# ── errors of clients ───────────────────────────────────────────────────────────────────────────


def refused(status: int) -> Exception:
    """The error of a bucket's client, as botocore makes it."""
    error = OSError("client")
    error.response = {"ResponseMetadata": {"HTTPStatusCode": status}}  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (refused(403), r"refuses it \(403\); log in"),
        (refused(404), "is not on its server"),
        (refused(410), "is not on its server"),
        (refused(412), "has changed on its server"),
        (refused(418), r"refuses it \(418\); see to"),
        (PermissionError(), r"refuses it \(no permission\); log in"),
        (FileNotFoundError(), "is not on its server"),
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


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503, 504])
def test_failures_that_pass_are_asked_again(status: int, bucket: Bucket) -> None:
    wrapped = OSError("of another library")
    wrapped.__cause__ = refused(status)
    bucket.failures = [refused(status), wrapped]
    assert ServerFile("s3://b/m", 100, "one").read(0, 1) == b"\0"
    assert bucket.opened == 3


class Waits(threading.Event):
    """A stop signal that waits for nothing, and has the times that were to be waited."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout)
        return False


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7.0), (" 7 ", 7.0), ("999", 60.0), ("soon", 0.0), ("-7", 0.0)]
)
def test_a_server_may_ask_to_wait_within_reason(
    header: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = Waits()
    monkeypatch.setattr(server_file, "_WAITS", (0.001,))
    busy = answer("503 Unavailable", b"", f"Retry-After: {header}")
    with (
        hostile(lambda _: iter([busy])) as server,
        pytest.raises(CheckpointError, match=r"it answers 503, 2 times"),
    ):
        ServerFile.look_up(f"{server.url}/m", stop)
    assert stop.waited == [max(seconds, 0.001)]


def test_a_client_may_be_asked_to_wait_too(bucket: Bucket) -> None:
    stop = Waits()
    error = OSError("busy")
    error.headers = {"Retry-After": "9"}  # type: ignore[attr-defined]
    bucket.failures = [error]
    ServerFile("s3://b/m", 100, "one", stop=stop).read(0, 1)
    assert stop.waited == [9.0]


def test_a_comparison_at_the_end_ends_with_the_work() -> None:
    with hostile(lambda _: iter([answer("503 Unavailable")])) as server:
        file = ServerFile(f"{server.url}/m", 100, "v")
        file.stop.set()
        with pytest.raises(RequestStoppedError):
            file.require_unchanged()
        assert len(server.requests) <= 1
