"""A server in a thread of this process, for the duration of a `with` block."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import BaseServer
from typing import TypeVar

ServerT = TypeVar("ServerT", bound=BaseServer)


@contextmanager
def served(server: ServerT) -> Iterator[ServerT]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
