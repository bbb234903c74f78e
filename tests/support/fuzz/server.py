"""A server on this machine whose answers are wrong in one way a path; it runs as a process of its own.

`/<number>/<model>/<file>` is served as case `number` draws it. Bodies and waits are bounded.
"""

from __future__ import annotations

import random
import re
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.support.mutated import change_weights

_ENDLESS = 64 << 20


class MutatedServer(ThreadingHTTPServer):
    """Serves the files below `root`, each case with its own fault."""

    daemon_threads = True

    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root, self.seed = root, seed

    def handle_error(self, *_: object) -> None:
        """Stay quiet about clients that went away."""


class _Handler(BaseHTTPRequestHandler):
    server: MutatedServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, *_: object) -> None:
        """Stay quiet."""

    def _answer(self, body: bool) -> None:
        number, _, name = unquote(urlsplit(self.path).path).strip("/").partition("/")
        draw = random.Random(f"{self.server.seed} server {number}")
        fault = draw.randrange(18)
        path = (self.server.root / name).resolve()
        if not path.is_file() or not path.is_relative_to(self.server.root):
            self._send(404, {}, b"")
            return
        content = path.read_bytes()
        if fault == 0 and path.suffix == ".safetensors":
            content = change_weights(draw, content)
        elif fault == 1:
            content = bytes(len(content))
        elif fault == 2:
            content = content[: draw.randrange(len(content))]
        start, end, code = 0, len(content), 200
        headers = {"ETag": f'"{len(content)}"', "Accept-Ranges": "bytes"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and fault != 3:
            start, code = int(asked[1]), 206
            end = min(end, int(asked[2]) + 1) if asked[2] else end
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
        self._spoil(draw, fault, body, code, headers, content[start:end])

    def _spoil(
        self,
        draw: random.Random,
        fault: int,
        body: bool,
        code: int,
        headers: dict[str, str],
        piece: bytes,
    ) -> None:
        if fault == 4:
            headers["Content-Range"] = draw.choice(("bytes 0-1/2", "bytes x", "", "bytes 9-3/1"))
        elif fault == 5:
            headers["ETag"] = f'"{random.random()}"'
        elif fault == 6:
            headers["Content-Encoding"] = draw.choice(("gzip", "br", "x"))
        elif fault == 7:
            code = draw.choice((100, 204, 206, 301, 304, 400, 401, 416, 418, 429, 500, 503, 599))
            headers["Retry-After"] = draw.choice(("0", "1", "-1", "1e9", "x"))
        elif fault == 8:
            code = draw.choice((301, 302, 307, 308))
            headers["Location"] = draw.choice(
                (
                    self.path,
                    "file:///etc/passwd",
                    "http://127.0.0.2:9/x",
                    "http://10.0.0.1/x",
                    "//",
                    "x",
                )
            )
        elif fault == 9:
            headers["Content-Length"] = draw.choice(("-1", "x", "99999999999", "0", "1"))
        elif fault == 10:
            piece = piece + bytes(draw.choice((1, 100, _ENDLESS)))
        elif fault == 11:
            piece = piece[: len(piece) // 2]
            headers["Content-Length"] = str(2 * len(piece) + 1)
        elif fault == 12:
            headers["X-Long"] = "x" * draw.choice((1000, 70_000, 200_000))
        elif fault == 13:
            time.sleep(draw.choice((0.2, 1.0)))
        elif fault == 14:
            self.close_connection = True
            self.connection.close()
            return
        elif fault == 15:
            self.wfile.write(
                draw.choice(
                    (b"\0" * 100, b"SSH-2.0-x\r\n", b"HTTP/9.9 x\r\n\r\n", b"HTTP/1.1 200\r\n")
                )
            )
            self.close_connection = True
            return
        elif fault == 16:
            self._trickle(code, headers, piece)
            return
        self._send(code, headers, piece if body else b"", size=len(piece))

    def _send(self, code: int, headers: dict[str, str], piece: bytes, size: int = 0) -> None:
        self.send_response(code)
        for key, value in {"Content-Length": str(size), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(piece)

    def _trickle(self, code: int, headers: dict[str, str], piece: bytes) -> None:
        """Send a byte every tenth of a second, for a minute at most."""
        self._send(code, headers, b"", size=len(piece))
        for place in range(min(len(piece), 600)):
            self.wfile.write(piece[place : place + 1])
            self.wfile.flush()
            time.sleep(0.1)


if __name__ == "__main__":
    server = MutatedServer(Path(sys.argv[1]).resolve(), int(sys.argv[2]))
    print(server.server_port, flush=True)
    server.serve_forever(poll_interval=0.1)
