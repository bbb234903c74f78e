"""Kinds of servers: web servers, hubs and buckets, each asked for a file's facts and for ranges of it."""

from __future__ import annotations

import base64
import binascii
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from emberge.errors import CheckpointError
from emberge.network import WebClient, require_scheme

_HUB = re.compile(r"hf://(?P<name>[^@]+)@(?P<commit>[0-9a-f]{40})(?:/(?P<path>.+))?")


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Size, version and hash of a file from its server; each None if the server does not provide it.

    `version` is the server's text that changes with the content: a hash, an ETag, a date.
    """

    size: int | None
    version: str | None
    sha256: str | None = None


class Server(Protocol):
    """One file on a server; any number of threads may use it."""

    def look(self) -> ServerFacts | None:
        """Return the file's current facts; None if there is no such file."""
        ...

    def read(self, start: int, end: int, facts: ServerFacts) -> bytes:
        """Return the bytes from `start` up to `end`, of the version of the file that `facts` describe."""
        ...


def server_of(url: str) -> Server:
    """Return the client for a file's address.

    Raises:
        CheckpointError: if the address has an unsupported scheme, or the package for its scheme is missing.
    """
    require_scheme(url)
    if url.startswith(("http://", "https://")):
        return _WebFile(WebClient(url))
    return _HubFile(url) if url.startswith("hf://") else _BucketFile(url)


def files_below(url: str) -> dict[str, ServerFacts]:
    """Return the files below an address by their names, as a hub or bucket lists them."""
    require_scheme(url)
    return _list_hub(url) if url.startswith("hf://") else _list_bucket(url)


class _WebFile:
    """A file on a plain web server."""

    def __init__(self, client: WebClient) -> None:
        self._client = client

    def look(self) -> ServerFacts | None:
        """Return the file's facts from its HTTP headers."""
        headers = self._client.facts()
        if headers is None:
            return None
        size = headers.get("content-length", "")
        version = headers.get("etag") or headers.get("last-modified")
        return ServerFacts(_read_count(size), version, _decode_digest(headers.get("digest", "")))

    def read(self, start: int, end: int, facts: ServerFacts) -> bytes:
        """Return a range of the file."""
        return self._client.read(start, end, facts.size or 0, facts.version or "")


class _HubFile:
    """A file of a commit on a hub, `hf://owner/name@commit/path`."""

    def __init__(self, url: str) -> None:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        self._name, self._commit, self._path = _split_address(url)
        address = hf_hub_url(self._name, self._path, revision=self._commit)
        self._client = WebClient(address, build_hf_headers())

    def look(self) -> ServerFacts | None:
        """Return the file's facts from the hub's listing."""
        from huggingface_hub import HfApi

        found = HfApi().get_paths_info(self._name, [self._path], revision=self._commit)
        entries = [entry for entry in found if entry.path == self._path]
        return _read_hub_facts(entries[0]) if entries else None

    def read(self, start: int, end: int, facts: ServerFacts) -> bytes:
        """Return a range of the file, from the hub or the storage that it leads to."""
        return self._client.read(start, end, facts.size or 0, facts.version or "")


class _BucketFile:
    """A file in a bucket, through fsspec, whose clients connect by themselves."""

    def __init__(self, url: str) -> None:
        self._files, self._path = _open_bucket(url)
        self._local = threading.local()

    def look(self) -> ServerFacts | None:
        """Return the file's facts from the bucket."""
        self._files.invalidate_cache()
        try:
            return _read_bucket_facts(dict(self._files.info(self._path)))
        except FileNotFoundError as error:
            # Some clients call every failure so.
            if isinstance(error.__cause__, Exception) and status_of(error) not in (404, 410):
                raise error.__cause__ from None
            return None

    def read(self, start: int, end: int, facts: ServerFacts) -> bytes:
        """Return a range of the file.

        Raises:
            OSError: if fewer bytes arrived.
        """
        handle = getattr(self._local, "handle", None)
        self._local.handle = None  # one that failed is not used again
        # Without a buffer, which would read more than is asked for. The client compares the file with the
        # one that it opened.
        opened = handle or self._files.open(self._path, "rb", cache_type="none")
        opened.seek(start)
        content = bytes(opened.read(end - start))
        if len(content) != end - start:
            raise OSError(f"{len(content):,} bytes in place of {end - start:,}")
        self._local.handle = opened
        return content


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status behind an error of any client; None without one."""
    for cause in causes(error):
        response = getattr(cause, "response", None)
        if isinstance(response, Mapping):  # that of buckets' client
            response_status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        else:
            response_status = getattr(response, "status_code", None)
        for status in (getattr(cause, "status", None), response_status):
            if isinstance(status, int):
                return status
    return None


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the chain of its causes."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__


def _list_hub(url: str) -> dict[str, ServerFacts]:
    from huggingface_hub import HfApi

    name, commit, _ = _split_address(url)
    entries = HfApi().list_repo_tree(name, recursive=True, revision=commit)
    return {entry.path: _read_hub_facts(entry) for entry in entries if hasattr(entry, "blob_id")}


def _list_bucket(url: str) -> dict[str, ServerFacts]:
    files, path = _open_bucket(url)
    info_by_name = files.find(path, detail=True, refresh=True)
    start = path.rstrip("/")
    return {
        name.removeprefix(start).lstrip("/"): _read_bucket_facts(info)
        for name, info in info_by_name.items()
    }


def _open_bucket(url: str) -> tuple[Any, str]:
    """Return the file system of a bucket's address, and the path in it.

    Raises:
        CheckpointError: if the package for its kind is missing.
    """
    from fsspec.core import url_to_fs

    try:
        return url_to_fs(url)  # type: ignore[no-any-return]
    except ImportError as error:
        raise CheckpointError(f"{url}: {error}; pip install 'emberge[remote]'") from error


def _split_address(url: str) -> tuple[str, str, str]:
    """Return name, commit and path of a file on a hub."""
    match = _HUB.fullmatch(url)
    if match is None:
        raise CheckpointError(
            f"{url}: no address of a file on a hub; write hf://owner/name@commit/path"
        )
    return match["name"], match["commit"], match["path"] or ""


def _read_hub_facts(entry: Any) -> ServerFacts:
    sha256 = getattr(getattr(entry, "lfs", None), "sha256", None)
    version = sha256 or entry.blob_id
    return ServerFacts(_read_count(entry.size), str(version) if version else None, sha256)


def _read_bucket_facts(info: Mapping[str, Any]) -> ServerFacts:
    names = ("ETag", "etag", "Last-Modified", "LastModified", "mtime")
    version = next((info[name] for name in names if info.get(name)), None)
    return ServerFacts(_read_count(info.get("size")), None if version is None else str(version))


def _read_count(found: Any) -> int | None:
    """Return a size in bytes given by a server; None if it is invalid."""
    text = str(found).strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _decode_digest(header: str) -> str | None:
    """Return the SHA-256 in a web server's digest header, in hexadecimal."""
    for part in header.split(","):
        name, _, value = part.strip().partition("=")
        if name.lower() == "sha-256":
            try:
                digest = base64.b64decode(value, validate=True)
            except binascii.Error:
                return None
            return digest.hex() if len(digest) == 32 else None
    return None
