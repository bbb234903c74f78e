"""Hubs that lead elsewhere, drown, starve or keep waiting: huggingface_hub's client has limits here."""

from __future__ import annotations

import gzip
import importlib
import itertools
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from emberge.network import UnsoundAnswerError, connection, hub_client, request_threads
from emberge.network import hub_requests as client_module
from emberge.network.connection import WatchedSocket
from emberge.network.hub_requests import HubClient
from emberge.network.hub_transport import LONGEST_ANSWER, HubState, _Stream, transport_of
from emberge.network.request_errors import ForbiddenAddressError, RequestStoppedError
from emberge_hub import locate_model
from huggingface_hub import constants, get_session
from huggingface_hub.errors import OfflineModeIsEnabled

from tests.support.hostile_server import HostileServer, Request, answer, hostile, pausing
from tests.support.hub_here import hub_at

STATE = HubState()


@pytest.fixture(scope="module")
def library() -> Any:
    """The HTTP library of huggingface_hub: httpx or its successor."""
    return importlib.import_module(type(get_session()).__module__.partition(".")[0])


@pytest.fixture
def client(library: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    hooks = {"request": [client_module._require_own]}
    with library.Client(
        transport=transport_of(library, STATE), follow_redirects=True, event_hooks=hooks
    ) as made:
        yield made


@pytest.fixture
def hub(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostileServer]:
    with hostile(request.param) as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        yield server


def chunks(_: Request) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    yield from itertools.repeat(b"100000\r\n" + bytes(1 << 20) + b"\r\n")


def until_the_end(_: Request) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n\r\n"
    yield from itertools.repeat(bytes(1 << 20))


@pytest.mark.parametrize("hub", [chunks, until_the_end], indirect=True)
def test_an_answer_of_unknown_length_is_bounded(
    hub: HostileServer, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emberge.network.hub_transport.LONGEST_ANSWER", 3 << 20)
    with pytest.raises(UnsoundAnswerError, match="more than was announced"):
        client.get(f"{hub.url}/o/m/resolve/main/config.json")
    assert hub.sent < 40 << 20


def announced(_: Request) -> Iterator[bytes]:
    yield answer("200 OK", bytes(1000), length=5_300_000_000)


@pytest.mark.parametrize("hub", [announced], indirect=True)
def test_an_answer_longer_than_the_largest_file_is_refused_before_it_comes(
    hub: HostileServer, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(STATE, "largest", LONGEST_ANSWER + 1)
    for path in ("o/m/resolve/main/model.safetensors", "api/models/o/m"):
        with pytest.raises(UnsoundAnswerError, match="more than was announced"):
            client.get(f"{hub.url}/{path}")


@pytest.mark.parametrize(
    "hub",
    [lambda _: iter([answer("200 OK", gzip.compress(bytes(1 << 20)), "Content-Encoding: gzip")])],
    indirect=True,
)
def test_an_answer_that_is_compressed_unasked_is_refused(hub: HostileServer, client: Any) -> None:
    with pytest.raises(UnsoundAnswerError, match=r"compressed \(gzip\)"):
        client.get(f"{hub.url}/api/models/o/m")
    assert hub.requests[0].headers["accept-encoding"] == "identity"


def test_a_redirect_to_another_server_is_not_followed(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        hostile(lambda _: iter([answer("200 OK", b"{}")])) as other,
        hostile(lambda _: iter([answer("302 Found", b"", f"Location: {other.url}/x")])) as server,
    ):
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        for ask in (client.get, client.head):
            with pytest.raises(ForbiddenAddressError, match="leads to another server"):
                ask(f"{server.url}/o/m/resolve/main/config.json")
        assert other.requests == []


def test_uploads_go_where_the_hub_has_them_go_and_never_in_the_clear(library: Any) -> None:
    for method, url, allowed in (
        ("PUT", "https://storage.example/x", True),
        ("PUT", "http://storage.example/x", False),
        ("GET", "https://storage.example/x", False),
        ("GET", "https://cdn-lfs.hf.co/x", True),
        ("HEAD", "https://huggingface.co/x", True),
    ):
        request = library.Request(method, url)
        if allowed:
            client_module._require_own(request)
        else:
            with pytest.raises(ForbiddenAddressError):
                client_module._require_own(request)


def test_the_hubs_name_that_means_a_private_address_is_not_connected_to(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "https://huggingface.co")
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", 443))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(connection, "_open_socket", lambda *_: pytest.fail("connected"))
    with pytest.raises(ForbiddenAddressError, match="private network"):
        client.get("https://huggingface.co/api/models/o/m")


def slow(_: Request) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    yield from pausing(itertools.repeat(b"x"), 0.02)


@pytest.mark.parametrize("hub", [slow], indirect=True)
def test_a_hub_below_the_lowest_rate_is_given_up(
    hub: HostileServer, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SLOW_SECONDS", 0.3)
    with pytest.raises(UnsoundAnswerError, match="slower than"):
        client.get(f"{hub.url}/o/m/resolve/main/config.json", timeout=None)


@pytest.mark.parametrize("hub", [slow], indirect=True)
def test_a_client_that_waits_no_longer_than_so_long_is_obeyed(
    hub: HostileServer, client: Any, library: Any
) -> None:
    def silent(_: Request) -> Iterator[bytes]:
        yield from pausing(itertools.repeat(b""), 0.1)

    hub._reply = silent
    with pytest.raises(library.ReadTimeout):
        client.get(f"{hub.url}/o/m", timeout=0.3)


@pytest.mark.parametrize("hub", [slow], indirect=True)
def test_requests_of_a_hubs_client_end_with_the_work_around_them(hub: HostileServer) -> None:
    began = threading.Event()

    def ask() -> None:
        began.set()
        threading.Event().wait(20)

    def work() -> None:
        with request_threads(1) as (threads, _):
            futures.append(threads.submit(hub_client.ask, ask))
            began.wait(10)
            raise ZeroDivisionError

    futures: list[Any] = []
    with pytest.raises(ZeroDivisionError):
        work()
    assert isinstance(futures[0].exception(), RequestStoppedError)


def test_a_connection_that_is_refused_is_the_librarys_own_error(
    client: Any, library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By it datasets and others know that they are to look into their caches."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", url)
    with pytest.raises(library.ConnectError, match="no connection"):
        client.get(url)


def test_a_hub_that_leads_to_another_server_gives_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From end to end: what is listed is there, and every file leads elsewhere."""

    def reply(request: Request) -> Iterator[bytes]:
        if request.path.startswith("/api/models/o/m/tree"):
            entry = {"type": "file", "path": "config.json", "size": 2, "oid": "1" * 40}
            return iter([answer("200 OK", json.dumps([entry]).encode())])
        if request.path.startswith("/api/"):
            info = {"id": "o/m", "sha": "c" * 40, "siblings": [{"rfilename": "config.json"}]}
            return iter([answer("200 OK", json.dumps(info).encode())])
        facts = ('ETag: "1"', "X-Linked-Size: 2", f"X-Repo-Commit: {'c' * 40}")
        return iter([answer("302 Found", b"", f"Location: {other.url}/x", *facts)])

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with (
        hostile(lambda _: iter([answer("200 OK", b"{}", 'ETag: "x"')])) as other,
        hostile(reply) as server,
    ):
        with hub_at(server.url, tmp_path / "home"):
            for files in ("metadata", "all", "ranges"):
                reference = "hf://o/m" if files == "ranges" else "o/m"
                with pytest.raises(ForbiddenAddressError, match="leads to another server"):
                    locate_model(reference, None, files)
        assert other.requests == []


def cut(_: Request) -> Iterator[bytes]:
    yield answer("200 OK", bytes(10), length=100)
    raise OSError


@pytest.mark.parametrize("hub", [cut], indirect=True)
def test_a_connection_that_is_cut_is_the_librarys_own_error(
    hub: HostileServer, client: Any, library: Any
) -> None:
    with pytest.raises(library.TransportError):
        client.get(f"{hub.url}/o/m")


def test_what_the_library_asks_of_a_connection(library: Any) -> None:
    core = importlib.import_module(library.__name__.replace("httpx", "httpcore"))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stream = _Stream(WatchedSocket(ours, "host", lambda: None), core)
        assert stream.get_extra_info("ssl_object") is None
        assert stream.get_extra_info("is_readable") is False
        theirs.sendall(b"x")
        assert stream.get_extra_info("is_readable") is True
        assert stream.get_extra_info("server_addr") == ours.getpeername()
        assert stream.read(10) == b"x"
        theirs.close()
        ours.shutdown(socket.SHUT_RDWR)
        with pytest.raises(core.WriteError):
            stream.write(b"x")
        with pytest.raises(core.ReadError):
            _Stream(_Broken(), core).read(1)  # type: ignore[arg-type]
    ours, theirs = socket.socketpair()
    context = ssl.create_default_context()
    with (
        theirs,
        context.wrap_socket(ours, server_hostname="host", do_handshake_on_connect=False) as secure,
    ):
        stream = _Stream(WatchedSocket(secure, "host", lambda: None), core)
        assert stream.get_extra_info("ssl_object") is secure


class _Broken:
    """A connection that breaks."""

    def recv_into(self, *_: object) -> int:
        raise ConnectionResetError


# ── the client as it is in a process ────────────────────────────────────────────────────────────


@pytest.fixture
def factories(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], Any]]:
    """What huggingface_hub was told to make its clients with."""
    told: list[Callable[[], Any]] = []
    monkeypatch.setattr("huggingface_hub.set_client_factory", told.append)
    return told


def test_the_client_is_replaced_once_and_keeps_the_librarys_own_rules(
    factories: list[Callable[[], Any]], library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = HubClient()
    ours.guard()
    ours.guard()
    (make,) = factories
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with make() as made, pytest.raises(OfflineModeIsEnabled):
        made.get("https://huggingface.co/api/models/o/m")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    bomb = answer("200 OK", b"{}", "Content-Encoding: br")

    def reply(request: Request) -> Iterator[bytes]:
        moved = answer("302 Found", b"", "Location: /bomb")
        return iter([bomb if request.path == "/bomb" else moved])

    with hostile(reply) as server, make() as made:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        assert made.timeout == library.Timeout(None)
        with pytest.raises(UnsoundAnswerError, match="compressed"):
            made.get(server.url)
        assert [request.path for request in server.requests] == ["/", "/bomb"]


def test_behind_a_proxy_names_are_checked_and_the_proxy_connects(
    factories: list[Callable[[], Any]], library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    HubClient().guard()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.lab")
    with hostile(lambda _: iter([answer("200 OK", b"{}", "Location: x")])) as proxy:
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        with factories[0]() as made:
            assert made.get("http://hub.lab/api/models/o/m").text == "{}"
            with pytest.raises(ForbiddenAddressError):
                made.get("http://db.lab/")
        assert [request.path for request in proxy.requests] == ["http://hub.lab/api/models/o/m"]
        monkeypatch.setenv("no_proxy", "hub.lab")
        with factories[0]() as made, pytest.raises(library.ConnectError):
            _ = made.get("http://hub.lab/api/models/o/m")
        assert len(proxy.requests) == 1


def test_after_requests_were_ended_others_may_begin() -> None:
    ours = HubClient()
    before = ours._state.stop
    began = threading.Event()

    def ask() -> None:
        began.set()
        threading.Event().wait(20)

    def work() -> None:
        with request_threads(1) as (threads, _):
            futures.append(threads.submit(ours.ask, ask))
            began.wait(10)
            raise ZeroDivisionError

    futures: list[Any] = []
    with pytest.raises(ZeroDivisionError):
        work()
    assert futures[0].exception() is not None
    assert before.is_set()
    assert not ours._state.stop.is_set()
    assert ours.ask(lambda: 7) == 7


def test_the_largest_file_is_that_of_one_call() -> None:
    ours = HubClient()

    def call() -> None:
        with ours.largest_file(5):
            assert ours._state.largest == 5
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        call()
    assert ours._state.largest is None
