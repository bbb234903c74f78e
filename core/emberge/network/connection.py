"""Connections to checked addresses, with a minimum rate and a maximum size of answers.

Every socket that emberge itself uses is opened in this module. A name is resolved once, and the checked
address is the one that is connected to; so a name that resolves differently the second time cannot bypass the
check.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import selectors
import socket
import ssl
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from emberge.network.addresses import require_address
from emberge.network.interruptible import POLL, Stop, call_within, require_going
from emberge.network.request_errors import UnreachableError, UnsoundAnswerError
from emberge.wording import human_size

CONNECT_SECONDS = 10.0
"""Largest number of seconds for resolving a name, for connecting, and for the TLS handshake, each."""
SLOW_SECONDS = 30.0
"""Seconds over which a server's average rate must reach `SLOW_RATE`."""
SLOW_RATE = 1000
"""The lowest rate, in bytes a second."""

# Failures of connecting for which another attempt would not help.
_PERMANENT_ERRNOS = (errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL)

Ended = Callable[[], Stop | None]


def connect(
    host: str, port: int, ended: Ended, *, tls: bool, seconds: float = CONNECT_SECONDS
) -> WatchedSocket:
    """Return a connection to a host at an allowed address; the event that `ended()` returns ends it.

    `seconds` is the limit for resolving the name, and again for connecting.

    Raises:
        ForbiddenAddressError: if the name resolves to a private address that the user did not name.
        UnreachableError: if the name or the server does not exist, so that another attempt would not help.
        UnsoundAnswerError: if the server's certificate does not match.
        OSError: if the attempt failed for another reason.
    """
    last_error: OSError = OSError(f"{host}: has no address")
    addresses = _resolve_addresses(host, port, ended(), seconds)
    for _, socket_address in addresses:
        require_address(host, str(socket_address[0]))
    for family, socket_address in addresses:
        try:
            opened = _open_socket(family, socket_address, host, ended, seconds)
        except OSError as error:
            last_error = error
            continue
        return _encrypt_socket(opened, host, ended) if tls else WatchedSocket(opened, host, ended)
    if last_error.errno in _PERMANENT_ERRNOS:
        raise UnreachableError(
            f"{host}:{port}: no connection ({last_error.strerror}); see to the address and the server"
        ) from last_error
    raise last_error


class WatchedSocket:
    """A connected socket that fails if `ended` is set, or if data are too slow or longer than allowed."""

    def __init__(self, opened: socket.socket, host: str, ended: Ended) -> None:
        self._socket, self._host, self._ended = opened, host, ended
        self._readers, self._closed = 0, False
        self._allowed: int | None = None
        self._pace: _RateMeter | _TimeMeter = _RateMeter(host)
        opened.settimeout(POLL)

    def begin(self, allowed: int | None = None, seconds: float | None = None) -> None:
        """Start to count a request, whose whole answer may have `allowed` bytes.

        With `seconds`, the answer may come as slowly as it likes within so many seconds of waiting.
        """
        self._allowed = allowed
        self._pace = _RateMeter(self._host) if seconds is None else _TimeMeter(seconds)

    def recv_into(self, buffer: Any, seconds: float | None = None) -> int:
        """Receive bytes into `buffer`, and return their number; 0 at the end.

        Raises:
            UnsoundAnswerError: if bytes arrive too slowly, or are more than allowed.
            RequestStoppedError: if the work was ended.
            TimeoutError: if nothing arrives within `seconds`.
        """
        received_count = self._move_bytes(lambda: self._socket.recv_into(buffer), seconds)
        if self._allowed is not None:
            self._allowed -= received_count
            if self._allowed < 0:
                raise UnsoundAnswerError(
                    f"{self._host}: sends more than it was asked for; read from another server"
                )
        return received_count

    def sendall(self, data: Any, seconds: float | None = None) -> None:
        """Send bytes.

        Raises:
            UnsoundAnswerError: if the server accepts bytes too slowly.
            RequestStoppedError: if the work was ended.
            TimeoutError: if nothing is accepted within `seconds`.
        """
        unsent_bytes = memoryview(data).cast("B")
        while unsent_bytes:
            unsent_bytes = unsent_bytes[
                self._move_bytes(functools.partial(self._socket.send, unsent_bytes), seconds) :
            ]

    def _move_bytes(self, move: Callable[[], int], seconds: float | None) -> int:
        """Send or receive some bytes, and return their number; the time waited is counted."""
        since = now = time.monotonic()
        while seconds is None or now - since < seconds:
            require_going(self._host, self._ended())
            moved_count = None
            with contextlib.suppress(TimeoutError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                moved_count = move()
            before, now = now, time.monotonic()
            self._pace.count(moved_count or 0, now - before)
            if moved_count is not None:
                return moved_count
        raise TimeoutError(errno.ETIMEDOUT, f"no answer within {seconds:g} s")

    def makefile(self, *_: Any, **__: Any) -> io.BufferedReader:
        """Return a file of incoming bytes; the socket stays open until it is closed too."""
        self._readers += 1
        return io.BufferedReader(_SocketReader(self))

    def close(self) -> None:
        """Close the socket as soon as its readers are closed."""
        self._closed = True
        if not self._readers:
            self._socket.close()

    def __del__(self) -> None:
        self._socket.close()

    def release(self) -> None:
        """Note that a reader was closed."""
        self._readers -= 1
        if self._closed:
            self.close()

    @property
    def plain(self) -> socket.socket:
        """The underlying socket, for its options and peer."""
        return self._socket

    def secured(self, context: ssl.SSLContext, name: str | None) -> WatchedSocket:
        """Return the connection with encryption.

        Raises:
            UnsoundAnswerError: if the server's certificate does not match.
        """
        return _encrypt_socket(self._socket, name or self._host, self._ended, context)


class _SocketReader(io.RawIOBase):
    """The bytes that arrive at a socket, as a file."""

    def __init__(self, source: WatchedSocket) -> None:
        self._source: WatchedSocket | None = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Receive bytes into `buffer`."""
        return self._source.recv_into(buffer) if self._source is not None else 0

    def close(self) -> None:
        """Close this reader of its socket."""
        source, self._source = self._source, None
        if source is not None:
            source.release()
        super().close()


class _RateMeter:
    """A meter of a request's rate over windows of time spent waiting; time between waits is not counted."""

    def __init__(self, host: str) -> None:
        self._host, self._seconds, self._bytes = host, 0.0, 0

    def count(self, bytes_: int, seconds: float) -> None:
        """Count bytes sent or received, and the time they took.

        Raises:
            UnsoundAnswerError: at the end of a window below the lowest rate.
        """
        self._bytes += bytes_
        self._seconds += seconds
        if self._seconds < SLOW_SECONDS:
            return
        if self._bytes < SLOW_RATE * self._seconds:
            raise UnsoundAnswerError(
                f"{self._host}: slower than {human_size(SLOW_RATE)} a second for {SLOW_SECONDS:g} s; try "
                "again later, or from another server"
            )
        self._seconds, self._bytes = 0.0, 0


class _TimeMeter:
    """A meter of the time that a request waits; how many bytes came in that time is of no account."""

    def __init__(self, seconds: float) -> None:
        self._limit, self._seconds = seconds, 0.0

    def count(self, bytes_: int, seconds: float) -> None:
        """Count the time that bytes took.

        Raises:
            TimeoutError: when the time is over.
        """
        self._seconds += seconds
        if self._seconds >= self._limit:
            raise TimeoutError(errno.ETIMEDOUT, f"no whole answer within {self._limit:g} s")


def _resolve_addresses(
    host: str, port: int, stop: Stop | None, seconds: float
) -> list[tuple[int, Any]]:
    """Return the families and addresses of a host name."""

    def ask() -> list[tuple[int, Any]]:
        results = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [(int(family), place) for family, _, _, _, place in results]

    try:
        return call_within(f"the address of {host}", ask, seconds, stop)
    except (socket.gaierror, UnicodeError, TimeoutError) as error:
        raise UnreachableError(
            f"{host}: no such server is known here ({error}); see to the address and the network"
        ) from None


def _open_socket(family: int, place: Any, host: str, ended: Ended, seconds: float) -> socket.socket:
    """Return a socket that is connected to an address."""
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setblocking(False)
        state = opened.connect_ex(place)
        if state not in (0, errno.EINPROGRESS):
            raise OSError(state, os.strerror(state))
        _await(opened, host, ended, seconds, write=True)
        state = opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if state:
            raise OSError(state, os.strerror(state))
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        opened.close()
        raise
    return opened


def _encrypt_socket(
    opened: socket.socket, host: str, ended: Ended, context: ssl.SSLContext | None = None
) -> WatchedSocket:
    """Return the connection with encryption, after verifying the server's certificate."""
    opened.setblocking(False)
    encrypted_socket = (context or _create_context()).wrap_socket(
        opened, server_hostname=host, do_handshake_on_connect=False
    )
    try:
        while True:
            try:
                encrypted_socket.do_handshake()
                break
            except ssl.SSLWantReadError:
                _await(encrypted_socket, host, ended, CONNECT_SECONDS, write=False)
            except ssl.SSLWantWriteError:
                _await(encrypted_socket, host, ended, CONNECT_SECONDS, write=True)
    except ssl.SSLError as error:
        encrypted_socket.close()
        reason = getattr(error, "verify_message", "") or error.reason or "no encryption"
        raise UnsoundAnswerError(
            f"{host}: does not prove that it is this server ({reason}); see to its address"
        ) from error
    except BaseException:
        encrypted_socket.close()
        raise
    return WatchedSocket(encrypted_socket, host, ended)


def _await(opened: socket.socket, host: str, ended: Ended, seconds: float, *, write: bool) -> None:
    """Wait until a socket can be written to, or read from."""
    until = time.monotonic() + seconds
    with selectors.DefaultSelector() as waiting:
        waiting.register(opened, selectors.EVENT_WRITE if write else selectors.EVENT_READ)
        while time.monotonic() < until:
            require_going(host, ended())
            if waiting.select(POLL):
                return
    raise TimeoutError(errno.ETIMEDOUT, f"no connection within {seconds:g} s")


@cache
def _create_context() -> ssl.SSLContext:
    return ssl.create_default_context()
