"""Connections: opened within a time, closed when nobody reads, and measured while they are waited for."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from emberge.network import Stop, UnreachableError, UnsoundAnswerError, call_within, connection
from emberge.network.connection import WatchedSocket, connect
from emberge.network.request_errors import ForbiddenAddressError, RequestStoppedError, StatusError


@pytest.fixture
def pair() -> Iterator[tuple[WatchedSocket, socket.socket]]:
    """A watched socket, and the socket at its other end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield WatchedSocket(ours, "host", lambda: None), theirs


@pytest.fixture
def full() -> Iterator[tuple[str, int]]:
    """The address of a server whose queue is full, so that a connection to it is never made."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield listening.getsockname()


def test_a_socket_is_closed_with_its_last_reader(
    pair: tuple[WatchedSocket, socket.socket],
) -> None:
    ours, theirs = pair
    first, second = ours.makefile("rb"), ours.makefile("rb")
    ours.close()
    theirs.sendall(b"ab")
    assert first.read(2) == b"ab"
    first.close()
    first.close()
    assert ours.plain.fileno() >= 0
    second.close()
    assert ours.plain.fileno() == -1


def test_a_socket_without_readers_is_closed_at_once(
    pair: tuple[WatchedSocket, socket.socket],
) -> None:
    ours, _ = pair
    ours.close()
    assert ours.plain.fileno() == -1


def test_a_connection_that_is_not_made_in_time_is_an_error_that_may_pass(
    full: tuple[str, int],
) -> None:
    with pytest.raises(TimeoutError, match=r"no connection within 0\.3 s"):
        connect(*full, lambda: None, tls=False, seconds=0.3)


@pytest.mark.parametrize("tls", [False, True])
def test_waiting_for_a_connection_ends_with_the_work_and_names_the_host(
    tls: bool, full: tuple[str, int]
) -> None:
    """Of a server that takes no connection, and of one that never agrees on a key."""
    stop = Stop()
    threading.Timer(0.05, stop.set).start()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = silent.getsockname() if tls else full
        with pytest.raises(RequestStoppedError, match=r"^127\.0\.0\.1: the request was ended"):
            connect(*place, lambda: stop, tls=tls)


def test_the_rate_is_that_of_all_bytes_in_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SLOW_SECONDS", 1.0)
    pace = connection._RateMeter("host")
    for _ in range(10):  # 1,100 bytes a second, in windows of four counts
        pace.count(330, 0.3)
    slow = connection._RateMeter("host")
    for _ in range(3):
        slow.count(290, 0.3)
    with pytest.raises(UnsoundAnswerError, match=r"^host: slower than"):
        slow.count(290, 0.3)


def test_a_window_begins_with_each_request_and_after_each_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "SLOW_SECONDS", 1.0)
    pace = connection._RateMeter("host")
    pace.count(50_000, 1.0)  # a fast start is no credit
    with pytest.raises(UnsoundAnswerError):
        pace.count(999, 1.0)


def test_time_between_reads_is_not_the_servers(
    pair: tuple[WatchedSocket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SLOW_SECONDS", 0.2)
    ours, theirs = pair
    ours.begin()
    theirs.sendall(b"abc")
    for _ in range(3):
        assert ours.recv_into(bytearray(1)) == 1
        time.sleep(0.15)


def test_an_allowance_is_that_of_one_request(pair: tuple[WatchedSocket, socket.socket]) -> None:
    ours, theirs = pair
    buffer = bytearray(10)
    for _ in range(3):
        ours.begin(4)
        theirs.sendall(b"1234")
        assert ours.recv_into(buffer) == 4
    theirs.sendall(b"5")
    with pytest.raises(UnsoundAnswerError, match="more than it was asked for"):
        ours.recv_into(buffer)
    ours.begin()
    theirs.sendall(b"123456")
    assert ours.recv_into(buffer) == 6


def test_everything_is_sent_in_as_many_pieces_as_it_takes(
    pair: tuple[WatchedSocket, socket.socket],
) -> None:
    ours, theirs = pair
    content = bytes(range(256)) * 8192
    received = bytearray()

    def take() -> None:
        while len(received) < len(content):
            received.extend(theirs.recv(1 << 16))

    thread = threading.Thread(target=take)
    thread.start()
    ours.sendall(content)
    thread.join(20)
    assert received == content


def test_reading_and_sending_end_after_the_time_given(
    pair: tuple[WatchedSocket, socket.socket],
) -> None:
    ours, _ = pair
    with pytest.raises(TimeoutError, match=r"no answer within 0\.1 s"):
        ours.recv_into(bytearray(1), 0.1)
    with pytest.raises(TimeoutError):
        ours.sendall(bytes(64 << 20), 0.1)


def test_a_call_that_blocks_ends_after_its_time_and_with_its_work() -> None:
    never = threading.Event()
    with pytest.raises(TimeoutError, match="the name: no answer within 0 s"):
        call_within("the name", never.wait, 0.05, None)
    stop = Stop()
    stop.set()
    with pytest.raises(RequestStoppedError):
        call_within("the name", never.wait, None, stop)
    never.set()
    assert call_within("the name", lambda: 7, 5, None) == 7
    with pytest.raises(ZeroDivisionError):
        call_within("the name", lambda: 1 // 0, 5, None)


def test_waiting_ends_after_its_time() -> None:
    stop = Stop()
    since = time.monotonic()
    stop.wait(0.3)
    assert time.monotonic() - since >= 0.3
    assert not stop.is_set()
    stop.set()
    stop.wait(60)


def test_what_may_pass_is_failed_work_and_what_does_not_is_wrong_input() -> None:
    assert UnreachableError.exit_code == RequestStoppedError.exit_code == 1
    assert ForbiddenAddressError.exit_code == UnsoundAnswerError.exit_code == 2
    error = StatusError("https://a/m", 503)
    assert str(error) == "https://a/m: it answers 503"
    assert (error.status, error.wait) == (503, 0.0)
