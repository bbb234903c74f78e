"""Servers of HTTP in a thread of this process, and what all their handlers of requests can do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit


class LocalServer(ThreadingHTTPServer):
    """A server on this machine that stays quiet about clients that went away."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        pass


class LocalHandler(BaseHTTPRequestHandler):
    """A handler of requests that logs nothing; `answer` is called for GET and HEAD."""

    protocol_version = "HTTP/1.1"

    @property
    def parts(self) -> list[str]:
        """The names in the path that is asked for."""
        return unquote(urlsplit(self.path).path).strip("/").split("/")

    @property
    def body(self) -> bool:
        """Whether the client wants more than the headers."""
        return self.command != "HEAD"

    def do_GET(self) -> None:
        self.answer()

    def do_HEAD(self) -> None:
        self.answer()

    def answer(self) -> None:
        raise NotImplementedError

    def send(
        self, code: int, content: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_head(code, len(content), headers)
        if self.body:
            self.wfile.write(content)

    def send_head(self, code: int, length: int, headers: Mapping[str, str] | None = None) -> None:
        """Send the status and the headers of an answer of so many bytes."""
        self.send_response(code)
        for name, value in {"Content-Length": str(length), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def send_json(self, value: Any, code: int = 200) -> None:
        self.send(code, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def refuse(self, code: int, error: str) -> None:
        """Send the answer of a hub that refuses: its status and its name of the error."""
        self.send(code, b"{}", {"X-Error-Code": error})

    def log_message(self, *_: object) -> None:
        pass


ServerT = TypeVar("ServerT", bound=LocalServer)


@contextmanager
def served(server: ServerT) -> Iterator[ServerT]:
    """Have a server answer for the duration of a `with` block."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
