"""A hub on this machine: the few endpoints that finding a model needs, over real files."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMITS = {"main": "a" * 40, "v2": "b" * 40}


class Hub(ThreadingHTTPServer):
    """Serves `root/<owner>/<name>/<revision>/…`; `owner/gated` exists and is refused."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.fetched: list[str] = []
        self.down = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serving(root: Path) -> Iterator[Hub]:
    hub = Hub(root)
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, *_: object) -> None:
        """Stay quiet."""

    def _answer(self, body: bool) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        if self.server.down:
            self._send(503, b"down", body)
        elif parts[:2] == ["api", "models"]:
            self._api(parts[2:], body)
        elif parts[2:3] == ["resolve"]:
            self._file(parts, body)
        else:
            self._send(404, b"{}", body)

    def _api(self, parts: list[str], body: bool) -> None:
        model, rest = "/".join(parts[:2]), parts[2:]
        if model == "owner/gated":
            return self._send(403, b"{}", body, {"X-Error-Code": "GatedRepo"})
        revision = rest[1] if len(rest) > 1 else "main"
        if not (self.server.root / model).is_dir():
            return self._send(404, b"{}", body, {"X-Error-Code": "RepoNotFound"})
        folder = self._folder(model, revision)
        if folder is None:
            return self._send(404, b"{}", body, {"X-Error-Code": "RevisionNotFound"})
        names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
        if rest[:1] == ["tree"]:
            answer: object = [
                {"type": "file", "path": n, "size": (folder / n).stat().st_size, "oid": _sha(n)}
                for n in names
            ]
        else:
            siblings = [{"rfilename": name} for name in names]
            answer = {"id": model, "sha": COMMITS[folder.name], "siblings": siblings}
        return self._send(
            200, json.dumps(answer).encode(), body, {"Content-Type": "application/json"}
        )

    def _file(self, parts: list[str], body: bool) -> None:
        model, revision, name = "/".join(parts[:2]), parts[3], "/".join(parts[4:])
        folder = self._folder(model, revision)
        if folder is None or not (folder / name).is_file():
            return self._send(404, b"", body, {"X-Error-Code": "EntryNotFound"})
        if body:
            self.server.fetched.append(name)
        content = (folder / name).read_bytes()
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": COMMITS[folder.name],
            "Accept-Ranges": "bytes",
        }
        return self._send(200, content, body, headers)

    def _folder(self, model: str, revision: str) -> Path | None:
        names = {commit: name for name, commit in COMMITS.items()}
        folder = self.server.root / model / names.get(revision, revision)
        return folder if folder.is_dir() else None

    def _send(
        self, code: int, content: bytes, body: bool, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(code)
        for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content)


def _sha(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
