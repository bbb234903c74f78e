"""Servers that lie, drown, starve or keep waiting: refused at once, in bounded memory, and ended."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from emberge import CheckpointError
from emberge.network import Stop, UnreachableError, UnsoundAnswerError, connection, request_threads
from emberge.network.request_errors import RequestStoppedError
from emberge.tensor_files import ServerFile, server_file, server_kinds

from tests.support.hostile_server import Request, answer, hostile, pausing

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


def endless_chunks(request: Request) -> Iterator[bytes]:
    start, end = request.range
    yield f"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {start}-{end - 1}/1000\r\n".encode()
    yield b"Transfer-Encoding: chunked\r\n\r\n"
    chunk = b"%x\r\n" % (64 << 10) + bytes(64 << 10) + b"\r\n"
    yield from itertools.repeat(chunk)


def endless_continues(_: Request) -> Iterator[bytes]:
    yield from itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


def whole_and_more(_: Request) -> Iterator[bytes]:
    yield answer("200 OK", bytes(4096), ETAG, length=5_300_000_000)


def longer_range(request: Request) -> Iterator[bytes]:
    yield ranged(request, bytes(4096))


@pytest.mark.parametrize("reply", [endless_chunks, endless_continues, whole_and_more, longer_range])
def test_an_answer_longer_than_the_range_is_refused_at_once_and_not_asked_for_again(reply) -> None:  # type: ignore[no-untyped-def]
    with hostile(reply) as server:
        with pytest.raises(UnsoundAnswerError, match=r"model\.safetensors"):
            at(server.url).read(0, 100)
        assert len(server.requests) == 1
        assert server.sent < 20_000_000  # what the system's buffers take, and no more


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


def test_an_answer_that_is_compressed_unasked_is_refused_and_never_inflated() -> None:
    bomb = gzip.compress(bytes(50 << 20))

    def reply(request: Request) -> Iterator[bytes]:
        assert request.headers["accept-encoding"] == "identity"
        yield ranged(request, bomb, ETAG, "Content-Encoding: gzip")

    with hostile(reply) as server:
        with pytest.raises(UnsoundAnswerError, match=r"compressed \(gzip\)"):
            at(server.url, 1 << 30).read(0, len(bomb))
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


def test_a_refused_connection_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_file, "_WAITS", (60.0,))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(UnreachableError, match=rf"127\.0\.0\.1:{port}.*no connection"):
        ServerFile.look_up(f"http://127.0.0.1:{port}/m")


def test_an_unknown_name_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(server_file, "_WAITS", (60.0,))
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(UnreachableError, match=r"nowhere\.example: no such server is known"):
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
        with pytest.raises(UnsoundAnswerError, match="does not prove that it is this server"):
            ServerFile.look_up(f"https://127.0.0.1:{listening.getsockname()[1]}/m")
        thread.join(10)


def test_only_failures_that_pass_are_asked_again() -> None:
    for status, times in (("404 Not Found", 1), ("403 Forbidden", 1), ("400 Bad Request", 1)):
        with hostile(lambda _, s=status: iter([answer(s)])) as server:
            with pytest.raises(CheckpointError):
                at(server.url).read(0, 10)
            assert len(server.requests) == times, status
    for status in ("500 Internal Server Error", "503 Unavailable", "429 Too Many Requests"):
        with hostile(lambda _, s=status: iter([answer(s)])) as server:
            with pytest.raises(UnreachableError, match="8 times"):
                at(server.url).read(0, 10)
            assert len(server.requests) == 8, status


def test_attempts_end_after_a_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_file, "_ENOUGH", 0.0)
    with hostile(lambda _: iter([answer("503 Unavailable")])) as server:
        with pytest.raises(UnreachableError, match="1 times"):
            at(server.url).read(0, 10)
        assert len(server.requests) == 1


def slow_body(request: Request) -> Iterator[bytes]:
    yield ranged(request, b"").replace(b"Length: 0", b"Length: 100")
    yield from pausing(itertools.repeat(b"x"), 0.02)


def no_answer(_: Request) -> Iterator[bytes]:
    time.sleep(20)
    yield b""


@pytest.mark.parametrize("reply", [slow_body, no_answer])
def test_a_server_below_the_lowest_rate_is_given_up(reply, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(connection, "SLOW_SECONDS", 0.4)
    with hostile(reply) as server:
        with pytest.raises(UnsoundAnswerError, match=r"slower than 1\S* kB a second"):
            at(server.url).read(0, 100)
        assert len(server.requests) == 1


@pytest.mark.parametrize("reply", [slow_body, no_answer])
def test_requests_end_with_the_work_around_them(reply) -> None:  # type: ignore[no-untyped-def]
    with hostile(reply) as server:
        began = threading.Event()

        def read(stop: Stop) -> bytes:
            began.set()
            return ServerFile(f"{server.url}/m", 1000, "v", stop=stop).read(0, 100)

        def work() -> None:
            with request_threads(2) as (threads, stop):
                futures.append(threads.submit(read, stop))
                began.wait(10)
                raise ZeroDivisionError

        futures: list[Future[bytes]] = []
        with pytest.raises(ZeroDivisionError):
            work()
        assert isinstance(futures[0].exception(), RequestStoppedError)


def test_waiting_for_the_next_attempt_ends_with_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_file, "_WAITS", (60.0,))
    with hostile(lambda _: iter([answer("503 Unavailable")])) as server:
        file = at(server.url)
        threading.Timer(0.05, file.stop.set).start()
        with pytest.raises(RequestStoppedError):
            file.read(0, 10)


def merge(models: str, _: Path) -> list[str]:
    return ["merge", f"{models}/a", f"{models}/b", "--strategy", "linear"]


def run(models: str, recipe: Path) -> list[str]:
    recipe.write_text(f"steps: {{m: {{merge: {{models: [{models}/a, {models}/b]}}}}}}\n")
    return ["run", str(recipe)]


@pytest.mark.parametrize(("verb", "end"), [(merge, signal.SIGTERM), (run, signal.SIGINT)])
def test_a_signal_ends_a_merge_that_waits_for_weights(verb, end: int, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """A server whose configs and headers come at once, and whose weights take minutes."""
    tensors = {"w": {"dtype": "F32", "shape": [1 << 21], "data_offsets": [0, 1 << 23]}}
    header = json.dumps(tensors).encode()
    opening = struct.pack("<Q", len(header)) + header
    files = {
        "/a/model.safetensors": opening + bytes(1 << 23),
        "/b/model.safetensors": opening + bytes(1 << 23),
        "/a/config.json": b'{"model_type": "bert"}',
        "/b/config.json": b'{"model_type": "bert"}',
    }
    waiting = threading.Event()

    def reply(request: Request) -> Iterator[bytes]:
        content = files.get(request.path)
        if content is None:
            yield answer("404 Not Found")
        elif request.method == "HEAD":
            yield answer("200 OK", b"", ETAG, length=len(content))
        elif request.range[1] <= len(opening):
            yield ranged(request, content[slice(*request.range)], ETAG, size=len(content))
        else:
            start, end = request.range
            begun = ranged(request, b"", ETAG, size=len(content))
            yield begun.replace(b"Length: 0", b"Length: %d" % (end - start))
            # Never below the lowest rate, which would end it too. The signal is for threads that wait.
            yield from pausing(itertools.repeat(bytes(3000), 10), 0.1)
            waiting.set()
            yield from pausing(itertools.repeat(bytes(3000)), 0.1)

    out = tmp_path / "out"
    with hostile(reply) as server:
        words = [*verb(server.url, tmp_path / "recipe.yaml"), "--out", str(out)]
        code, said = end_by(end, waiting, words)
    assert (code, said[-1]) == (128 + end, "stopped; the same command goes on from here")
    assert not (out / "m").exists()
    assert not (out / "model.safetensors").exists()


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_check_whose_server_does_not_come_to_its_answer(
    end: int, tmp_path: Path
) -> None:
    """Models are looked for in threads, which have to end too."""
    waiting = threading.Event()

    def reply(_: Request) -> Iterator[bytes]:
        yield b"HTTP/1.1 100 Continue\r\n\r\n"
        waiting.set()
        # Above the lowest rate, and minutes until it is too much.
        yield from pausing(itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n" * 8), 0.1)

    with hostile(reply) as server:
        words = ["check", run(server.url, tmp_path / "recipe.yaml")[-1]]
        code, said = end_by(end, waiting, words)
    assert (code, said) == (128 + end, ["stopped"])


# Who starts the tests in the background of a shell may have Ctrl-C ignored. The work has to end by itself.
_COMMAND = """
import signal, sys
from emberge.cli import ended_by_signal
from emberge.cli.main import main
ended_by_signal.LONGEST_END_SECONDS = 600.0
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main(sys.argv[1:]))
"""


def end_by(end: int, waiting: threading.Event, words: list[str]) -> tuple[int, list[str]]:
    """Return exit code and lines of a command that got a signal when it waited for its server."""
    child = subprocess.Popen(
        [sys.executable, "-c", _COMMAND, *words],
        env=os.environ | {"PYTHONUTF8": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert waiting.wait(120)
        child.send_signal(end)
        said, _ = child.communicate(timeout=60)  # ends a hang; no server here ends a command before
        return child.returncode, said.splitlines()
    finally:
        child.kill()
        child.communicate()


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


def test_the_encryption_is_that_of_the_system() -> None:
    context = connection._create_context()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
