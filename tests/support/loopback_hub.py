"""A hub on this machine: the endpoints that models, streamed datasets and uploads need, over real files."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from huggingface_hub import HfFileSystem, constants
from huggingface_hub.utils import close_session

from tests.support.served import LocalHandler, LocalServer, served

COMMITS = {"main": "a" * 40, "v2": "b" * 40}


class Hub(LocalServer):
    """Serves `root/<owner>/<name>/<revision>/…`; `owner/gated` exists and is refused.

    Datasets are in `root/datasets/<owner>/<name>/<revision>/…`. `sent` has the bytes sent of each file.

    Whoever brings the `token` may create models of `mine` and commit to them; their commits are kept,
    `private` names those that few may see, and `received` counts the large files that came. `answers` has by
    the beginning of a path answers to give before the real one, one a request: a status.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(_Handler)
        self.root = root
        self.fetched: list[str] = []
        self.sent: Counter[str] = Counter()
        self.down = False
        self.token: str | None = None
        self.mine = "me"
        self.received: Counter[str] = Counter()
        self.answers: dict[str, list[int]] = {}
        self.commits: dict[str, list[str]] = {}
        self.private: list[str] = []
        self.asked: list[str] = []

    @property
    def large(self) -> Path:
        """The folder of large files, by their hashes."""
        return self.root / ".large"

    def next_answer(self, path: str) -> int | None:
        """Return the status that was prepared for a request, or None."""
        for start, codes in self.answers.items():
            if start in path and codes:
                return codes.pop(0)
        return None


@contextmanager
def serving(root: Path) -> Iterator[Hub]:
    with served(Hub(root)) as hub:
        yield hub


@contextmanager
def hub_at(url: str, home: Path, *, offline: bool = False) -> Iterator[None]:
    """Have huggingface_hub ask the hub at `url`, and keep its files below `home`, inside the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        patch.setattr(constants, "ENDPOINT", url)
        template = url + "/{repo_id}/resolve/{revision}/{filename}"
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        patch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
        patch.setattr(constants, "HF_HUB_OFFLINE", offline)
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        patch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
        _forget_hub()
        yield
    _forget_hub()


def _forget_hub() -> None:
    """Close connections, and drop file systems, which know the hub that they were made for."""
    close_session()
    HfFileSystem.clear_instance_cache()


class _Handler(LocalHandler):
    server: Hub

    def do_PUT(self) -> None:
        """Take a large file under the hash that its content has to have."""
        content = self._body()
        digest = urlsplit(self.path).path.rpartition("/")[2]
        if self._prepared():
            return None
        if hashlib.sha256(content).hexdigest() != digest:
            return self.send(400, b"another content")
        self.server.received[digest] += 1
        self.server.large.mkdir(exist_ok=True)
        (self.server.large / digest).write_bytes(content)
        return self.send(200, b"")

    def do_POST(self) -> None:
        """Answer what an upload asks for, or which of some paths a dataset has."""
        content = self._body()
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(path)
        if self._prepared():
            return None
        if path.endswith("/paths-info/main") or "/paths-info/" in path:
            return self._paths_info(content.decode())
        if path == "/api/validate-yaml":
            return self.send_json({"errors": [], "warnings": []})
        if not self._may_write():
            return None
        asked = content.decode()
        if path == "/api/repos/create":
            return self._create(json.loads(asked))
        parts = self.parts
        if path.endswith(".git/info/lfs/objects/batch"):
            return self._batch(json.loads(asked))
        if parts[4:5] == ["preupload"]:
            return self._preupload("/".join(parts[2:4]), json.loads(asked))
        if parts[4:5] == ["commit"]:
            return self._commit("/".join(parts[2:4]), asked)
        return self.send(404, b"{}")

    def _body(self) -> bytes:
        """Read what the client sent, in one piece or in chunks."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        pieces = []
        while size := int(self.rfile.readline().strip(), 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _prepared(self) -> bool:
        """Give the answer that was prepared for this request, if any."""
        code = self.server.next_answer(self.path)
        if code is not None:
            self.send(code, b"{}", {"Retry-After": "0"})
        return code is not None

    def _may_write(self) -> bool:
        given = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if given != self.server.token or not given:
            text = b'{"error": "Invalid username or password."}'
            headers = {"X-Error-Message": "Invalid username or password."}
            self.send(401, text, headers)
            return False
        return True

    def _create(self, asked: dict[str, Any]) -> None:
        owner = asked.get("organization") or self.server.mine
        if owner != self.server.mine:
            return self.send(403, b'{"error": "no right to create there"}')
        name = f"{owner}/{asked['name']}"
        folder = self.server.root / name / "main"
        known = folder.is_dir()
        if not known:
            folder.mkdir(parents=True)
            (folder / ".gitattributes").write_text("*.safetensors filter=lfs\n")
            self.server.commits[name] = [_sha(f"{name} first")]
            self.server.private += (
                [name] if asked.get("visibility") == "private" or asked.get("private") else []
            )
        return self.send_json(
            {"url": f"{self.server.url}/{name}", "name": name}, 409 if known else 200
        )

    def _preupload(self, model: str, asked: dict[str, Any]) -> None:
        folder = self.server.root / model / "main"
        if not folder.is_dir():
            return self.refuse(404, "RepoNotFound")
        known = {entry["path"]: entry for entry in _tree(folder)}
        files = [
            {
                "path": one["path"],
                "uploadMode": "lfs" if _is_large(one["path"]) else "regular",
                "shouldIgnore": False,
                "oid": _content_oid(known.get(one["path"])),
            }
            for one in asked["files"]
        ]
        return self.send_json({"files": files})

    def _batch(self, asked: dict[str, Any]) -> None:
        objects = []
        for one in asked["objects"]:
            entry = {"oid": one["oid"], "size": one["size"]}
            if not (self.server.large / one["oid"]).is_file():
                href = f"{self.server.url}/.large/{one['oid']}"
                entry["actions"] = {"upload": {"href": href, "header": {}}}
            objects.append(entry)
        return self.send_json({"transfer": "basic", "objects": objects})

    def _commit(self, model: str, asked: str) -> None:
        """Apply all operations of a commit, or none."""
        lines = [json.loads(line) for line in asked.splitlines()]
        header = lines[0]["value"]
        commits = self.server.commits.setdefault(model, [COMMITS["main"]])
        if header.get("parentCommit", commits[-1]) != commits[-1]:
            return self.send_json({"error": "A commit has happened since."}, 412)
        folder = self.server.root / model / "main"
        kept = self.server.root / model / commits[-1]
        if not kept.exists():
            shutil.copytree(folder, kept)
        for line in lines[1:]:
            value = line["value"]
            path = folder / value["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            if line["key"] == "file":
                path.write_bytes(base64.b64decode(value["content"]))
            elif line["key"] == "lfsFile":
                shutil.copyfile(self.server.large / value["oid"], path)
            elif line["key"] == "deletedFile":
                path.unlink()
        commits.append(_sha(f"{model} {len(commits)} {asked}"))
        url = f"{self.server.url}/{model}/commit/{commits[-1]}"
        return self.send_json({"success": True, "commitOid": commits[-1], "commitUrl": url})

    def _paths_info(self, asked: str) -> None:
        parts = self.parts
        folder = self._folder("/".join(parts[1:4]), parts[5]) if len(parts) == 6 else None
        if self.server.down or parts[4:5] != ["paths-info"] or folder is None:
            return self.send(404, b"{}")
        given = json.loads(asked) if asked.startswith("{") else parse_qs(asked)
        wanted = [p.strip("/") for p in given["paths"]]
        known = [entry for entry in _tree(folder) if entry["path"] in wanted]
        return self.send_json(known)

    def answer(self) -> None:
        parts = self.parts
        if self.server.down:
            self.send(503, b"down")
        elif self._prepared():
            return
        elif parts[:2] == ["api", "models"]:
            self._api("/".join(parts[2:4]), parts[4:])
        elif parts[:2] == ["api", "datasets"]:
            self._api("/".join(parts[1:4]), parts[4:])
        elif parts[2:3] == ["resolve"]:
            self._file("/".join(parts[:2]), parts[3:])
        elif parts[:1] == ["datasets"] and parts[3:4] == ["resolve"]:
            self._file("/".join(parts[:3]), parts[4:])
        else:
            self.send(404, b"{}")

    def _api(self, model: str, rest: list[str]) -> None:
        if model == "owner/gated":
            return self.refuse(403, "GatedRepo")
        revision = rest[1] if len(rest) > 1 else "main"
        if not (self.server.root / model).is_dir():
            return self.refuse(404, "RepoNotFound")
        folder = self._folder(model, revision)
        if folder is None:
            return self.refuse(404, "RevisionNotFound")
        if rest[:1] == ["commits"]:
            history = self.server.commits.get(model, [COMMITS["main"]])
            answer: object = [_history_entry(commit) for commit in reversed(history)]
        elif rest[:1] == ["tree"]:
            within = "".join(f"{part}/" for part in rest[2:])
            answer = [e for e in _tree(folder) if e["path"].startswith(within)]
            if within and not answer:
                return self.refuse(404, "EntryNotFound")
        else:
            siblings = [
                {"rfilename": one["path"], "blobId": one["oid"], "size": one["size"]}
                | ({"lfs": {**one["lfs"], "sha256": one["lfs"]["oid"]}} if "lfs" in one else {})
                for one in _tree(folder)
            ]
            name = model.removeprefix("datasets/")
            tags = ["sentence-transformers"] if (folder / "modules.json").is_file() else []
            sha = self._commit_of(model, folder)
            answer = {"id": name, "sha": sha, "siblings": siblings, "tags": tags}
        return self.send_json(answer)

    def _file(self, model: str, parts: list[str]) -> None:
        revision, name = parts[0], "/".join(parts[1:])
        folder = self._folder(model, revision)
        if folder is None or not (folder / name).is_file():
            return self.refuse(404, "EntryNotFound")
        if self.body:
            self.server.fetched.append(name)
        content = (folder / name).read_bytes()
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": self._commit_of(model, folder),
            "Accept-Ranges": "bytes",
        }
        code, wanted = 200, self.headers.get("Range", "").removeprefix("bytes=").partition("-")
        if wanted[1]:
            start, end = int(wanted[0] or 0), int(wanted[2] or len(content) - 1)
            headers["Content-Range"] = f"bytes {start}-{end}/{len(content)}"
            code, content = 206, content[start : end + 1]
        if self.body:
            self.server.sent[name] += len(content)
        return self.send(code, content, headers)

    def _commit_of(self, model: str, folder: Path) -> str:
        """Return the commit of a folder: one that was made here, or one of the fixed ones."""
        made = self.server.commits.get(model)
        if made is None:
            return COMMITS[folder.name]
        return made[-1] if folder.name == "main" else folder.name

    def _folder(self, model: str, revision: str) -> Path | None:
        made = self.server.commits.get(model, [""])
        names = {**{commit: name for name, commit in COMMITS.items()}, made[-1]: "main"}
        folder = self.server.root / model / names.get(revision, revision)
        return folder if folder.is_dir() else None


def _tree(folder: Path) -> list[dict[str, Any]]:
    """Return all files of a folder as the hub lists them."""
    return [_entry(path, name) for name, path in _files(folder)]


def _files(folder: Path) -> list[tuple[str, Path]]:
    """Return the names and places of all files in a folder."""
    paths = (p for p in folder.rglob("*") if p.is_file())
    return sorted((p.relative_to(folder).as_posix(), p) for p in paths)


def _entry(path: Path, name: str) -> dict[str, Any]:
    content = path.read_bytes()
    blob = b"blob %d\0" % len(content) + content
    oid = hashlib.sha1(blob, usedforsecurity=False).hexdigest()
    entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": oid}
    if _is_large(name):
        sha256 = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": sha256, "size": len(content), "pointerSize": 134}
    return entry


def _content_oid(entry: dict[str, Any] | None) -> str | None:
    """Return the hash by which a client knows that it has a file's content."""
    if entry is None:
        return None
    return str(entry["lfs"]["oid"] if "lfs" in entry else entry["oid"])


def _is_large(name: str) -> bool:
    """Return whether the hub keeps a file outside git, by its name."""
    return name.endswith((".safetensors", ".onnx", ".bin"))


def _history_entry(commit: str) -> dict[str, Any]:
    return {
        "id": commit,
        "title": "a commit",
        "message": "",
        "authors": [],
        "date": "2026-01-02T03:04:05.000Z",
    }


def _sha(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
