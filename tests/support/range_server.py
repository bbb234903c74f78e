"""A server of models on this machine that answers ranges and counts bytes.

It is a hub (`owner/name`) and a bucket (`/bucket/…`) over one folder of real files.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

from tests.support.served import LocalHandler, LocalServer, served

COMMIT = "c" * 40


class RangeServer(LocalServer):
    """Serves `root/<owner>/<name>/…`; `sent` has the bytes sent of each file, `ranges` which."""

    def __init__(self, root: Path) -> None:
        super().__init__(_Handler)
        self.root = root
        self.sent: Counter[str] = Counter()
        self.ranges: dict[str, list[tuple[int, int]]] = {}
        self.after: dict[str, Any] = {}
        """By file, what is called once after the first range of it was sent."""
        self.hashes: dict[Path, str] = {}
        """Of large files, as the hub took them when it got them."""

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


@contextmanager
def serving_ranges(root: Path) -> Iterator[RangeServer]:
    with served(RangeServer(root)) as server:
        yield server


class _Handler(LocalHandler):
    server: RangeServer

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        given = json.loads(asked) if asked.startswith("{") else parse_qs(asked)
        files = self.server.tree(self.server.root / "/".join(self.parts[2:4]))
        self.send_json([one for one in files if one["path"] in given["paths"]])

    def answer(self) -> None:
        parts = self.parts
        if parts[:2] == ["api", "models"]:
            self._api(parts[2:])
        elif parts[2:3] == ["resolve"]:
            self._file("/".join(parts[:2]) + "/" + "/".join(parts[4:]))
        elif parts == ["bucket"]:
            self._list(parse_qs(urlsplit(self.path).query))
        elif parts[0] == "bucket":
            self._file("/".join(parts[1:]))
        else:
            self.send(404)

    def _api(self, parts: list[str]) -> None:
        folder = self.server.root / "/".join(parts[:2])
        if not folder.is_dir():
            self.refuse(404, "RepoNotFound")
        elif parts[2:3] == ["tree"]:
            self.send_json(self.server.tree(folder))
        else:
            siblings = [{"rfilename": one["path"]} for one in self.server.tree(folder)]
            self.send_json({"id": "/".join(parts[:2]), "sha": COMMIT, "siblings": siblings})

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
        self.send(200, text.encode(), {"Content-Type": "application/xml"})

    def _file(self, name: str) -> None:
        path = self.server.root / name
        if not path.is_file():
            return self.refuse(404, "EntryNotFound")
        size, etag = path.stat().st_size, _etag(path)
        headers = {"X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes", "ETag": etag}
        if self.headers.get("If-Match", etag) != etag:
            return self.send(412)
        start, end, code = 0, size, 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked:
            start, code = int(asked[1]), 206
            end = min(size, int(asked[2]) + 1) if asked[2] else size
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        self.send_head(code, end - start, headers)
        if self.body:
            self._send_bytes(name, start, end)
        return None

    def _send_bytes(self, name: str, start: int, stop: int) -> None:
        server = self.server
        with (server.root / name).open("rb") as file:
            file.seek(start)
            self.wfile.write(file.read(stop - start))
        with server.lock:
            server.sent[name] += stop - start
            server.ranges.setdefault(name, []).append((start, stop))
            then = server.after.pop(name, None) if start else None
        if then is not None:
            then()


def _etag(path: Path) -> str:
    facts = path.stat()
    return f'"{facts.st_mtime_ns:x}-{facts.st_size:x}"'
