"""Connections that nobody uses: a few of a server stay open for a short time, and the last goes first."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from emberge.network import Stop, web_client
from emberge.network.addresses import Origin
from emberge.network.web_client import WatchedConnection, _IdlePool

HERE, THERE = Origin("https", "a.org", 443), Origin("https", "a.org", 8443)


class Socket:
    """A socket that may be closed."""

    closed = False

    def close(self) -> None:
        self.closed = True


def opened(origin: Origin = HERE) -> WatchedConnection:
    connection = WatchedConnection(origin)
    connection.sock = Socket()  # type: ignore[assignment]
    return connection


def test_the_connection_that_was_left_last_is_taken_first_by_its_server_alone() -> None:
    idle, first, second, other = _IdlePool(), opened(), opened(), opened(THERE)
    first.stop = Stop()
    for connection in (first, second, other):
        idle.leave(connection)
    assert first.stop is None
    assert [idle.take(HERE), idle.take(HERE), idle.take(THERE)] == [second, first, other]
    new = idle.take(HERE)
    assert new not in (first, second)
    assert (new.sock, new.host, new.port, new.origin, new.stop) == (None, "a.org", 443, HERE, None)
    idle.leave(new)
    assert idle.take(HERE) is not new


def test_of_too_many_open_connections_the_oldest_is_closed() -> None:
    idle, left = _IdlePool(), [opened() for _ in range(10)]
    sockets = [connection.sock for connection in left]
    for connection in left:
        idle.leave(connection)
    assert [socket.closed for socket in sockets] == [True] * 2 + [False] * 8  # type: ignore[union-attr]
    assert [idle.take(HERE) for _ in range(8)] == left[:1:-1]


def test_a_connection_that_was_left_long_ago_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(web_client, "time", SimpleNamespace(monotonic=lambda: now))
    idle, old, young = _IdlePool(), opened(), opened()
    idle.leave(old)
    socket = old.sock
    now += 9.5
    idle.leave(young)
    now += 1
    assert idle.take(HERE) is young
    assert idle.take(HERE) is not old
    assert socket.closed  # type: ignore[union-attr]
