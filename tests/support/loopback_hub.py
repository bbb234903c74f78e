"""A hub on this machine: the few endpoints that models and streamed datasets need, over real files."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_JSON = {"Content-Type": "application/json"}
COMMITS = {"main": "a" * 40, "v2": "b" * 40}


class Hub(ThreadingHTTPServer):
    """Serves `root/<owner>/<name>/<revision>/…`; `owner/gated` exists and is refused.

    Datasets are in `root/datasets/<owner>/<name>/<revision>/…`. `sent` has the bytes sent of each file.
    """

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.fetched: list[str] = []
        self.sent: Counter[str] = Counter()
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

    def do_POST(self) -> None:
        """Answer where a dataset's client asks which of some paths there are."""
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        folder = self._folder("/".join(parts[1:4]), parts[5]) if len(parts) == 6 else None
        if self.server.down or parts[4:5] != ["paths-info"] or folder is None:
            return self._send(404, b"{}", True)
        given = json.loads(asked) if asked.startswith("{") else parse_qs(asked)
        wanted = [p.strip("/") for p in given["paths"]]
        known = [entry for entry in _tree(folder) if entry["path"] in wanted]
        return self._send(200, json.dumps(known).encode(), True, _JSON)

    def log_message(self, *_: object) -> None:
        """Stay quiet."""

    def _answer(self, body: bool) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        if self.server.down:
            self._send(503, b"down", body)
        elif parts[:2] == ["api", "models"]:
            self._api("/".join(parts[2:4]), parts[4:], body)
        elif parts[:2] == ["api", "datasets"]:
            self._api("/".join(parts[1:4]), parts[4:], body)
        elif parts[2:3] == ["resolve"]:
            self._file("/".join(parts[:2]), parts[3:], body)
        elif parts[:1] == ["datasets"] and parts[3:4] == ["resolve"]:
            self._file("/".join(parts[:3]), parts[4:], body)
        else:
            self._send(404, b"{}", body)

    def _api(self, model: str, rest: list[str], body: bool) -> None:
        if model == "owner/gated":
            return self._send(403, b"{}", body, {"X-Error-Code": "GatedRepo"})
        revision = rest[1] if len(rest) > 1 else "main"
        if not (self.server.root / model).is_dir():
            return self._send(404, b"{}", body, {"X-Error-Code": "RepoNotFound"})
        folder = self._folder(model, revision)
        if folder is None:
            return self._send(404, b"{}", body, {"X-Error-Code": "RevisionNotFound"})
        if rest[:1] == ["tree"]:
            within = "".join(f"{part}/" for part in rest[2:])
            answer: object = [e for e in _tree(folder) if e["path"].startswith(within)]
            if within and not answer:
                return self._send(404, b"{}", body, {"X-Error-Code": "EntryNotFound"})
        else:
            siblings = [{"rfilename": entry["path"]} for entry in _tree(folder)]
            name = model.removeprefix("datasets/")
            answer = {"id": name, "sha": COMMITS[folder.name], "siblings": siblings}
        return self._send(200, json.dumps(answer).encode(), body, _JSON)

    def _file(self, model: str, parts: list[str], body: bool) -> None:
        revision, name = parts[0], "/".join(parts[1:])
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
        code, wanted = 200, self.headers.get("Range", "").removeprefix("bytes=").partition("-")
        if wanted[1]:
            start, end = int(wanted[0] or 0), int(wanted[2] or len(content) - 1)
            headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
            code, content = 206, content[start : end + 1]
        if body:
            self.server.sent[name] += len(content)
        return self._send(code, content, body, headers)

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


def _tree(folder: Path) -> list[dict[str, Any]]:
    """Return all files of a folder as the hub lists them."""
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    return [
        {"type": "file", "path": n, "size": (folder / n).stat().st_size, "oid": _sha(n)}
        for n in names
    ]


def _sha(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
