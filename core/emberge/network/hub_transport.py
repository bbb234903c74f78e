"""The transport of huggingface_hub's HTTP library over the connections of `emberge.network`.

The library is httpx, or its successor with the same interface. Its classes are only known once it is
imported, so the classes that it must accept as its own are built from ours and theirs.
"""

from __future__ import annotations

import importlib
import selectors
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from emberge.network.connection import CONNECT_SECONDS, WatchedSocket, connect
from emberge.network.interruptible import Stop, require_going
from emberge.network.request_errors import UnreachableError, UnsoundAnswerError
from emberge.wording import human_size, printable

LONGEST_ANSWER = 64 << 20
"""Largest number of bytes of a hub's answer that is no file, or is a file of unannounced size."""


@dataclass
class HubState:
    """The state of the client: the event that ends its requests, and the largest file expected."""

    stop: Stop = field(default_factory=lambda: Stop(alone=True))
    largest: int | None = None


def transport_of(library: Any, state: HubState) -> Any:
    """Return a transport for an HTTP library (httpx) that uses the connections of `emberge.network`."""
    core: Any = importlib.import_module(library.__name__.replace("httpx", "httpcore"))
    body_class = type("Body", (_Body, library.SyncByteStream), {})
    transport_class = type(
        "Transport", (_Transport, library.HTTPTransport), {"state": state, "body": body_class}
    )
    transport = transport_class()
    transport._pool = core.ConnectionPool(
        ssl_context=library.create_ssl_context(), network_backend=_Backend(core, state)
    )
    return transport


class _Backend:
    """A network backend for the library's core, which opens connections of `emberge.network`."""

    def __init__(self, core: Any, state: HubState) -> None:
        self._core, self._state = core, state

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *_: Any, **__: Any
    ) -> _Stream:
        """Return a connection to a host, at an allowed address."""
        seconds = CONNECT_SECONDS if timeout is None else min(timeout, CONNECT_SECONDS)
        with _map_errors(self._core.ConnectError, self._core.ConnectTimeout):
            connection = connect(host, port, lambda: self._state.stop, tls=False, seconds=seconds)
        return _Stream(connection, self._core)

    def sleep(self, seconds: float) -> None:
        """Wait before another attempt."""
        self._state.stop.wait(seconds)


class _Stream:
    """A connection with the interface of the library's core."""

    def __init__(self, own: WatchedSocket, core: Any) -> None:
        self._own, self._core = own, core

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return the next received bytes."""
        buffer = bytearray(max_bytes)
        with _map_errors(self._core.ReadError, self._core.ReadTimeout):
            return bytes(buffer[: self._own.recv_into(buffer, timeout)])

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send bytes, which begin a request."""
        self._own.begin()
        with _map_errors(self._core.WriteError, self._core.WriteTimeout):
            self._own.sendall(buffer, timeout)

    def close(self) -> None:
        """Close the connection."""
        self._own.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> _Stream:
        """Return the connection with encryption."""
        with _map_errors(self._core.ConnectError, self._core.ConnectTimeout):
            return _Stream(self._own.secured(ssl_context, server_hostname), self._core)

    def get_extra_info(self, info: str) -> Any:
        """Return details of the connection for the library."""
        plain = self._own.plain
        if info == "is_readable":
            return _is_readable(plain)
        if info == "ssl_object":
            return plain if isinstance(plain, ssl.SSLSocket) else None
        return plain.getpeername() if info == "server_addr" else None


class _Body:
    """The body of an answer, with a maximum size."""

    def __init__(self, stream: Any, url: str, most: int, state: HubState) -> None:
        self._stream, self._url, self._left, self._state = stream, url, most, state

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._stream:
            require_going(self._url, self._state.stop)
            self._left -= len(piece)
            if self._left < 0:
                raise _build_too_long_error(self._url)
            yield piece

    def close(self) -> None:
        """Close the body."""
        self._stream.close()


class _Transport:
    """A transport that limits answers; it is combined with the library's class, which sends requests."""

    state: HubState
    body: type[_Body]

    def handle_request(self, request: Any) -> Any:
        """Return the answer to a request, limited in length."""
        request.headers["Accept-Encoding"] = "identity"
        answer = super().handle_request(request)  # type: ignore[misc]
        url = printable(str(request.url).partition("?")[0], 200)
        try:
            most = _find_answer_limit(request, answer, url, self.state.largest)
        except BaseException:
            answer.close()
            raise
        answer.stream = self.body(answer.stream, url, most, self.state)
        return answer


def _find_answer_limit(request: Any, answer: Any, url: str, largest: int | None) -> int:
    """Return the most bytes that an answer's body may have.

    Raises:
        UnsoundAnswerError: if the answer announces more bytes, or is compressed.
    """
    coding = answer.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise UnsoundAnswerError(
            f"{url}: comes compressed ({printable(coding, 40)}), which was not asked for"
        )
    length = answer.headers.get("content-length", "")
    announced = int(length) if length.isascii() and length.isdigit() else None
    if announced is None or "/api/" in request.url.path:
        limit = LONGEST_ANSWER
    else:
        limit = announced if largest is None else max(largest, LONGEST_ANSWER)
    if request.method == "GET" and announced is not None and announced > limit:
        raise _build_too_long_error(url)
    return limit


def _build_too_long_error(url: str) -> UnsoundAnswerError:
    return UnsoundAnswerError(
        f"{url}: answers with more than was announced, or than {human_size(LONGEST_ANSWER)}; try another "
        "hub, and let this one's owner know"
    )


@contextmanager
def _map_errors(kind: type[Exception], late: type[Exception]) -> Iterator[None]:
    """Raise network failures as the HTTP library's errors, and our refusals unchanged."""
    try:
        yield
    except UnreachableError as error:
        raise kind(str(error)) from error
    except TimeoutError as error:
        raise late(str(error)) from error
    except OSError as error:
        raise kind(str(error) or type(error).__name__) from error


def _is_readable(plain: socket.socket) -> bool:
    """Return whether an idle connection has something to read: its end, or an answer without a request."""
    with selectors.DefaultSelector() as waiting:
        waiting.register(plain, selectors.EVENT_READ)
        return bool(waiting.select(0))
