"""A server on this machine that answers each request with bytes that a test writes, right or wrong ones.

An answer is a function of the request that writes to the connection.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """A request: method, path, and headers by lower-case name."""

    method: str
    path: str
    headers: Mapping[str, str]

    @property
    def range(self) -> tuple[int, int]:
        """First byte and end of the range asked for."""
        start, end = self.headers["range"].removeprefix("bytes=").split("-")
        return int(start), int(end) + 1


Answer = Callable[[Request], Iterator[bytes]]


def answer(status: str, body: bytes = b"", *headers: str, length: int | None = None) -> bytes:
    """Return an answer, whose length need not be that of its body."""
    size = len(body) if length is None else length
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {size}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class HostileServer:
    """The server while it runs: its address, the requests that came, and the connections made."""

    def __init__(self, reply: Answer) -> None:
        self._reply = reply
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.requests: list[Request] = []
        self.ended = threading.Event()

    def run(self) -> None:
        """Take connections until the end."""
        while not self.ended.is_set():
            with contextlib.suppress(OSError):
                connection, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def close(self) -> None:
        """End the server and all its connections."""
        self.ended.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError), connection.makefile("rb") as lines:
            while not self.ended.is_set() and (request := _request(lines)) is not None:
                self.requests.append(request)
                for piece in self._reply(request):
                    if self.ended.is_set():
                        return
                    connection.sendall(piece)


def _request(lines: object) -> Request | None:
    first = lines.readline().decode("latin-1").split()  # type: ignore[attr-defined]
    if len(first) < 3:
        return None
    headers = {}
    while line := lines.readline().decode("latin-1").strip():  # type: ignore[attr-defined]
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return Request(first[0], first[1], headers)


@contextmanager
def hostile(reply: Answer) -> Iterator[HostileServer]:
    """Run a server that answers as `reply` does."""
    server = HostileServer(reply)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join(5)
