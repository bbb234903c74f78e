"""A server of models on this machine that answers ranges, counts bytes, and fails as servers do.

It is a plain web server (`/web/…`), a hub (`owner/name`), and a bucket (`/bucket/…`) over one folder of real
files. `python -m tests.support.range_server ROOT [BYTES_PER_SECOND [drop]]` runs it alone.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.support.served import served

COMMIT = "c" * 40
_PIECE = 256 << 10


@dataclass
class Faults:
    """What the server does wrong; a number is that of requests of which one fails."""

    drops: int = 0
    cuts: int = 0
    throttles: int = 0
    ignores_ranges: bool = False
    refuses: bool = False
    no_versions: bool = False
    ignores_conditions: bool = False
    rate: float = 0.0
    """Bytes a second of each connection; 0 for as many as it can."""


class RangeServer(ThreadingHTTPServer):
    """Serves `root/<owner>/<name>/…`; `sent` has the bytes sent of each file, `ranges` which."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, root: Path, faults: Faults | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root, self.faults = root, faults or Faults()
        self.sent: Counter[str] = Counter()
        self.ranges: dict[str, list[tuple[int, int]]] = {}
        self.requests = 0
        self.failed = 0
        self.after: dict[str, Any] = {}
        """By file, what is called once after the first range of it was sent."""
        self.hashes: dict[Path, str] = {}
        """Of large files, as the hub took them when it got them."""
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def tree(self, folder: Path) -> list[dict[str, Any]]:
        """Return all files of a folder as a hub lists them; weights are large files, with a hash."""
        found = []
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            name, size = path.relative_to(folder).as_posix(), path.stat().st_size
            oid = hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()
            entry: dict[str, Any] = {"type": "file", "path": name, "size": size, "oid": oid}
            if path.suffix == ".safetensors":
                if path not in self.hashes:
                    self.hashes[path] = hashlib.sha256(path.read_bytes()).hexdigest()
                entry["lfs"] = {"oid": self.hashes[path], "size": size, "pointerSize": 134}
            found.append(entry)
        return found

    def handle_error(self, *_: object) -> None:
        """Stay quiet about clients that went away."""


@contextmanager
def serving_ranges(root: Path, faults: Faults | None = None) -> Iterator[RangeServer]:
    with served(RangeServer(root, faults)) as server:
        yield server


class _Handler(BaseHTTPRequestHandler):
    server: RangeServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        given = json.loads(asked) if asked.startswith("{") else parse_qs(asked)
        folder = self.server.root / "/".join(parts[2:4])
        found = [one for one in self.server.tree(folder) if one["path"] in given["paths"]]
        self._send_json(found)

    def log_message(self, *_: object) -> None:
        """Stay quiet."""

    def _answer(self, body: bool) -> None:
        server, faults = self.server, self.server.faults
        with server.lock:
            server.requests += 1
            number = server.requests
        if faults.drops and number % faults.drops == 0:
            server.failed += 1
            self.close_connection = True
            self.connection.close()
            return
        if faults.throttles and number % faults.throttles == 1:
            server.failed += 1
            self._send(429, b"", body, {"Retry-After": "0"})
            return
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self._api(parts[2:])
        elif parts[2:3] == ["resolve"]:
            self._file("/".join(parts[:2]) + "/" + "/".join(parts[4:]), number, body)
        elif parts[:1] == ["web"]:
            self._file("/".join(parts[1:]), number, body)
        elif parts[:1] == ["bucket"] and len(parts) == 1:
            self._list(parse_qs(urlsplit(self.path).query))
        elif parts[:1] == ["bucket"]:
            self._file("/".join(parts[1:]), number, body)
        else:
            self._send(404, b"", body)

    def _api(self, parts: list[str]) -> None:
        folder = self.server.root / "/".join(parts[:2])
        if self.server.faults.refuses:
            self._send(403, b"{}", True, {"X-Error-Code": "GatedRepo"})
        elif not folder.is_dir():
            self._send(404, b"{}", True, {"X-Error-Code": "RepoNotFound"})
        elif parts[2:3] == ["tree"]:
            self._send_json(self.server.tree(folder))
        else:
            siblings = [{"rfilename": one["path"]} for one in self.server.tree(folder)]
            self._send_json({"id": "/".join(parts[:2]), "sha": COMMIT, "siblings": siblings})

    def _list(self, query: dict[str, list[str]]) -> None:
        prefix = query.get("prefix", [""])[0]
        names = sorted(
            p.relative_to(self.server.root).as_posix()
            for p in self.server.root.rglob("*")
            if p.is_file()
        )
        rows = "".join(
            f"<Contents><Key>{escape(name)}</Key><ETag>{escape(_etag(self.server.root / name))}</ETag>"
            f"<Size>{(self.server.root / name).stat().st_size}</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for name in names
            if name.startswith(prefix)
        )
        text = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        self._send(200, text.encode(), True, {"Content-Type": "application/xml"})

    def _file(self, name: str, number: int, body: bool) -> None:
        server, faults = self.server, self.server.faults
        path = server.root / name
        if faults.refuses:
            return self._send(403, b"", body)
        if not path.is_file():
            return self._send(404, b"", body, {"X-Error-Code": "EntryNotFound"})
        size, etag = path.stat().st_size, _etag(path)
        headers = {"X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if not faults.no_versions:
            headers["ETag"] = etag
        wanted = self.headers.get("If-Match", etag)
        if wanted != etag and not faults.ignores_conditions:
            return self._send(412, b"", body)
        start, end, code = 0, size, 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and not faults.ignores_ranges:
            start, code = int(asked[1]), 206
            end = min(size, int(asked[2]) + 1) if asked[2] else size
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        cut = bool(faults.cuts) and number % faults.cuts == 2 and body
        self.send_response(code)
        for key, value in {**headers, "Content-Length": str(end - start)}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self._send_bytes(name, path, start, end, cut)
        return None

    def _send_bytes(self, name: str, path: Path, start: int, end: int, cut: bool) -> None:
        server = self.server
        stop = start + (end - start) // 2 if cut else end
        with path.open("rb") as file:
            file.seek(start)
            left = stop - start
            while left:
                piece = file.read(min(left, _PIECE))
                self.wfile.write(piece)
                left -= len(piece)
                if server.faults.rate:
                    time.sleep(len(piece) / server.faults.rate)
        with server.lock:
            server.sent[name] += stop - start
            server.ranges.setdefault(name, []).append((start, stop))
            then = server.after.pop(name, None) if start else None
        if then is not None:
            then()
        if cut:
            server.failed += 1
            self.close_connection = True
            self.connection.close()

    def _send_json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), True, {"Content-Type": "application/json"})

    def _send(
        self, code: int, content: bytes, body: bool, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(code)
        for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)


def _etag(path: Path) -> str:
    facts = path.stat()
    return f'"{facts.st_mtime_ns:x}-{facts.st_size:x}"'


def main() -> None:
    rate = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    faults = Faults(rate=rate)
    if sys.argv[3:] == ["drop"]:
        faults = Faults(rate=rate, drops=10, cuts=17, throttles=23)
    with serving_ranges(Path(sys.argv[1]), faults) as server:
        print(server.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
