"""Servers that send other bytes than were asked for, or fail: refused, or asked again."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from emberge import CheckpointError
from emberge.network import UnreachableError, UnsoundAnswerError
from emberge.tensor_files import ServerFile, server_file, server_kinds

from tests.support.hostile_server import Request, answer, hostile

ETAG = 'ETag: "one"'


@pytest.fixture(autouse=True)
def _fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(server_file, "_WAITS", (0.001,) * 7)


def at(url: str, size: int = 1000) -> ServerFile:
    return ServerFile(f"{url}/model.safetensors", size, '"one"')


def ranged(request: Request, body: bytes, *headers: str, size: int = 1000) -> bytes:
    start, end = request.range
    span = f"Content-Range: bytes {start}-{end - 1}/{size}"
    return answer("206 Partial Content", body, span, *(headers or (ETAG,)))


# ── more than was asked for ─────────────────────────────────────────────────────────────────────


def whole_and_more(_: Request) -> Iterator[bytes]:
    yield answer("200 OK", bytes(4096), ETAG, length=5_300_000_000)


def longer_range(request: Request) -> Iterator[bytes]:
    yield ranged(request, bytes(4096))


@pytest.mark.parametrize("reply", [whole_and_more, longer_range])
def test_an_answer_longer_than_the_range_is_refused_at_once_and_not_asked_for_again(reply) -> None:  # type: ignore[no-untyped-def]
    with hostile(reply) as server:
        with pytest.raises(UnsoundAnswerError, match=r"model\.safetensors"):
            at(server.url).read(0, 100)
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


# ── other bytes than were asked for ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "span", ["bytes 5-104/1000", "bytes 0-98/1000", "bytes */1000", "0-99", "bytes 0-99/x"]
)
def test_another_range_than_the_one_asked_for_is_refused(span: str) -> None:
    def reply(_: Request) -> Iterator[bytes]:
        yield answer("206 Partial Content", bytes(100), f"Content-Range: {span}", ETAG)

    with hostile(reply) as server:
        with pytest.raises(UnsoundAnswerError, match="when asked for bytes 0-99/1000"):
            at(server.url).read(0, 100)
        assert len(server.requests) == 1


@pytest.mark.parametrize(("etag", "size"), [('ETag: "two"', 1000), (ETAG, 999)])
def test_a_part_of_another_version_is_refused(etag: str, size: int) -> None:
    with (
        hostile(lambda request: iter([ranged(request, bytes(100), etag, size=size)])) as server,
        pytest.raises(CheckpointError, match="has changed on its server"),
    ):
        at(server.url).read(0, 100)


def test_the_whole_file_in_place_of_a_part_is_refused_and_in_place_of_the_whole_is_taken() -> None:
    content = bytes(range(100))
    with hostile(lambda _: iter([answer("200 OK", content, ETAG)])) as server:
        assert at(server.url, 100).read(0, 100) == content
        with pytest.raises(UnsoundAnswerError, match="ignores ranges"):
            at(server.url, 100).read(0, 50)
        with pytest.raises(UnsoundAnswerError, match="ignores ranges"):
            at(server.url, 200).read(50, 150)


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
        with pytest.raises(UnreachableError, match=r"99 bytes in place of 100, 8 times"):
            at(server.url).read(0, 100)
        assert len(server.requests) == 8


def test_a_bucket_that_sends_too_little_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the client of a bucket returns: the length is compared."""

    class Short:
        def seek(self, _: int) -> None: ...

        def read(self, count: int) -> bytes:
            return bytes(count - 1)

    class Files:
        def open(self, *_: object, **__: object) -> Short:
            return Short()

    monkeypatch.setattr(server_kinds, "_open_bucket", lambda url: (Files(), url))
    with pytest.raises(UnreachableError, match=r"s3://b/m: .*9 bytes in place of 10, 8 times"):
        ServerFile("s3://b/m", 100, "v").read(0, 10)


# ── servers that are nobody, and those that wait ────────────────────────────────────────────────


def test_an_unknown_name_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(server_file, "_WAITS", (60.0,))
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(UnreachableError, match=r"nowhere\.example/m: no connection"):
        ServerFile.look_up("https://nowhere.example/m")


def test_a_server_that_does_not_prove_its_name_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_file, "_WAITS", (60.0,))

    def speak_plainly() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(1)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.recv(4096)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=speak_plainly)
        thread.start()
        with pytest.raises(UnreachableError, match=r"no connection .*SSL"):
            ServerFile.look_up(f"https://127.0.0.1:{listening.getsockname()[1]}/m")
        thread.join(10)


def test_attempts_end_after_a_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_file, "_ENOUGH", 0.0)
    with hostile(lambda _: iter([answer("503 Unavailable")])) as server:
        with pytest.raises(UnreachableError, match="1 times"):
            at(server.url).read(0, 10)
        assert len(server.requests) == 1


# ── what is kept of a server ────────────────────────────────────────────────────────────────────


def test_a_header_of_zeros_is_not_kept() -> None:
    with (
        hostile(
            lambda request: iter([ranged(request, bytes(request.range[1] - request.range[0]))])
        ) as server,
        pytest.raises(CheckpointError, match=r"model\.safetensors.*no JSON"),
    ):
        at(server.url).build_note()


def test_a_copy_of_zeros_is_not_kept(tmp_path: Path) -> None:
    def reply(request: Request) -> Iterator[bytes]:
        start, end = request.range
        yield ranged(request, bytes(end - start), size=100)

    with hostile(reply) as server:
        for name in ("model.safetensors", "tokenizer.json"):
            with pytest.raises(CheckpointError, match=rf"{name}.*JSON"):
                ServerFile(f"{server.url}/{name}", 100, '"one"').copy(tmp_path / name)
