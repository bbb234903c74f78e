"""Files on a server, read by ranges through fsspec: hubs, S3-compatible buckets, plain web servers.

A request that fails is repeated, and a file that changes meanwhile is refused.
"""

from __future__ import annotations

import base64
import binascii
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from emberge.errors import CheckpointError
from emberge.files.hashes import sha256_of
from emberge.tensor_files.remote_file import RemoteFile
from emberge.tensor_files.safetensors_header import header_size

__all__ = ["ServerFile", "UnreachableError", "insist", "open_server", "other_content"]

T = TypeVar("T")

# Seconds before each further attempt: a server that answers nine in ten fails all eight once in 10^8 blocks.
_WAITS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
# The longest time that a server may ask us to wait.
_PATIENCE = 60.0
# Of the refusals those that pass: a slow request, one too early, and too many.
_PASSING = (408, 425, 429)
_STRONG = re.compile(r'"[^"]*"')


class UnreachableError(CheckpointError, ConnectionError):
    """A server that failed every time that it was asked."""

    exit_code = 1


def open_server(url: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path in it.

    Raises:
        CheckpointError: where the package for its kind is missing.
    """
    from fsspec.core import url_to_fs

    try:
        return url_to_fs(url)  # type: ignore[no-any-return]
    except ImportError as error:
        raise CheckpointError(f"{url}: {error}; pip install 'emberge[remote]'") from error


def insist(url: str, ask: Callable[[], T], stop: threading.Event | None = None) -> T:
    """Return the answer of `ask`, which is asked again, ever later, while the server fails.

    Raises:
        CheckpointError: for a refusal, which no further attempt would change.
        UnreachableError: after the last attempt.
    """
    stop = stop or threading.Event()
    for wait in (*_WAITS, None):
        try:
            return ask()
        except CheckpointError:
            raise
        except Exception as error:  # each library has errors of its own
            refused = _refusal(url, error)
            if refused is not None:
                raise refused from error
            if wait is None or stop.wait(max(wait, _asked_wait(error))):
                raise UnreachableError(
                    f"{url}: cannot be read ({_reason(error)}, {len(_WAITS) + 1} times); try again later: "
                    "what is done is kept"
                ) from error
    raise AssertionError(url)


@dataclass
class ServerFile:
    """A file on a server, as it was when it was looked at; any number of threads may read it.

    `sha256` is the hash of the whole file, where the server gives one. `stop` ends waiting for the server.
    """

    url: str
    size: int
    version: str
    sha256: str | None = None
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._server, self._path = open_server(self.url)
        self._local = threading.local()

    @classmethod
    def look(cls, url: str) -> ServerFile | None:
        """Return the file at an address without its content; None if there is none.

        Raises:
            CheckpointError: when the server refuses, or gives nothing that would change with the file.
        """
        server, path = open_server(url)
        info = insist(url, lambda: _info(server, path))
        return None if info is None else cls._of(url, info)

    @classmethod
    def listed(cls, url: str) -> dict[str, ServerFile]:
        """Return all files below an address, by their own, as the server lists them.

        Raises:
            CheckpointError: when the server refuses, or cannot list.
        """
        server, path = open_server(url)
        found = insist(url, lambda: server.find(path, detail=True, refresh=True))
        names = {name: name.removeprefix(path.rstrip("/")).lstrip("/") for name in found}
        return {
            f"{url}/{names[k]}": cls._of(f"{url}/{names[k]}", info) for k, info in found.items()
        }

    @classmethod
    def _of(cls, url: str, info: Mapping[str, Any]) -> ServerFile:
        size, version = info.get("size"), version_of(info)
        if size is None or version is None:
            lacks = "size" if size is None else "ETag, nor a date"
            raise CheckpointError(
                f"{url}: its server gives no {lacks}, so that a change while it is read could not be seen; "
                "download the model's folder and name that"
            )
        return cls(url, int(size), version, _sha256_of(info))

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` up to `end`.

        Raises:
            CheckpointError: when the server refuses, ignores ranges or fails again and again, and when the
                file is another than the one that was looked at.
        """
        return insist(self.url, lambda: self._read(start, end), self.stop)

    def note(self) -> RemoteFile:
        """Return the note of a safetensors file, of which the header alone is read.

        Raises:
            CheckpointError: for what begins with no header.
        """
        opening = self.read(0, min(8, self.size))
        header = opening + self.read(8, header_size(self.url, opening, self.size))
        return RemoteFile(self.url, self.size, self.version, self.sha256, header)

    def require_content(self, copy: Path) -> None:
        """Make sure that a copy of the whole file has the hash that the server gives, if it gives one.

        Raises:
            CheckpointError: for another hash.
        """
        found = sha256_of(copy) if self.sha256 is not None else None
        if found != self.sha256:
            raise other_content(self, str(found))

    def require_unchanged(self) -> None:
        """Make sure that the file is still the one that was looked at.

        Raises:
            CheckpointError: when it is another, or gone.
        """
        info = insist(self.url, lambda: _info(self._server, self._path), self.stop)
        if info is None or (info.get("size"), version_of(info)) != (self.size, self.version):
            raise _changed(self.url)

    def _read(self, start: int, end: int) -> bytes:
        if start == end:
            return b""
        handle = getattr(self._local, "handle", None) or self._open()
        self._local.handle = None  # one that failed is not used again
        handle.seek(start)
        found = bytes(handle.read(end - start))
        if len(found) != end - start:
            raise OSError(f"{len(found):,} bytes in place of {end - start:,}")
        self._local.handle = handle
        return found

    def _open(self) -> Any:
        """Open the file without a buffer, which would read more than is asked for."""
        kinds, own = _protocols(self._server), {}
        if "http" in kinds:
            # A web server compares the version with every range; not one that fits several contents.
            strong = _STRONG.fullmatch(self.version)
            own = {"size": self.size, **({"headers": {"If-Match": self.version}} if strong else {})}
        elif "hf" in kinds:
            own = {"size": self.size}  # the address has the commit
        else:
            # The client of a bucket compares by itself, with what is there when it opens the file.
            self.require_unchanged()
        return self._server.open(self._path, "rb", cache_type="none", **own)


def version_of(info: Mapping[str, Any]) -> str | None:
    """Return what a server changes with a file's content; None if it gives nothing of the kind."""
    names = ("ETag", "etag", "blob_id", "Last-Modified", "LastModified", "mtime")
    found = _hub_hash(info) or next((info[name] for name in names if info.get(name)), None)
    return None if found is None else str(found)


def _info(server: Any, path: str) -> Mapping[str, Any] | None:
    """Return what the server knows of a file now; None if there is none."""
    server.invalidate_cache()
    try:
        return dict(server.info(path))
    except FileNotFoundError as error:
        # Some clients call every failure so.
        if isinstance(error.__cause__, Exception) and _status(error) not in (404, 410):
            raise error.__cause__ from None
        return None


def _sha256_of(info: Mapping[str, Any]) -> str | None:
    own = _hub_hash(info)
    if own is not None:
        return own
    for part in str(info.get("Digest") or "").split(","):
        name, _, value = part.strip().partition("=")
        if name.lower() == "sha-256":
            try:
                return base64.b64decode(value, validate=True).hex()
            except binascii.Error:
                return None
    return None


def _hub_hash(info: Mapping[str, Any]) -> str | None:
    """Return the SHA-256 that a hub has of a large file."""
    large = info.get("lfs")
    found = getattr(large, "sha256", None)
    return str(found) if found else None


def _protocols(server: Any) -> tuple[str, ...]:
    own = server.protocol
    return (own,) if isinstance(own, str) else tuple(own)


def other_content(file: ServerFile, found: str) -> CheckpointError:
    """Return the error for content whose hash is not the server's."""
    return CheckpointError(
        f"{file.url}: what came has SHA-256 {found[:12]}…, and its server gives "
        f"{str(file.sha256)[:12]}…; run again, and if it remains let the server's owner know"
    )


def _changed(url: str) -> CheckpointError:
    return CheckpointError(
        f"{url}: has changed on its server since it was looked at; run again, from its new content"
    )


def _refusal(url: str, error: Exception) -> CheckpointError | None:
    """Return the error for an answer that will not change; None for a failure that may pass."""
    status = _status(error)
    if status == 412:
        return _changed(url)
    if status in (401, 403) or isinstance(error, PermissionError):
        return CheckpointError(
            f"{url}: its server refuses it ({status or 'no permission'}); log in (`hf auth login` for a "
            "hub), or give the credentials of the bucket"
        )
    if status in (404, 410) or isinstance(error, FileNotFoundError):
        return CheckpointError(f"{url}: is not on its server (any more); see to its address")
    if isinstance(error, ValueError) and "range" in str(error):
        return CheckpointError(
            f"{url}: its server ignores ranges, so that no part of it can be read alone; download the "
            "model's folder and name that"
        )
    if status is not None and 400 <= status < 500 and status not in _PASSING:
        return CheckpointError(f"{url}: its server refuses it ({status}); see to its address")
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and those that it came from."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__


def _status(error: Exception) -> int | None:
    """Return the HTTP status behind an error of any client; None without one."""
    for one in _causes(error):
        response = getattr(one, "response", None)
        if isinstance(response, Mapping):  # that of buckets' client
            response_status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        else:
            response_status = getattr(response, "status_code", None)
        for found in (getattr(one, "status", None), response_status):
            if isinstance(found, int):
                return found
    return None


def _asked_wait(error: Exception) -> float:
    """Return the seconds that a server asks us to wait, within reason."""
    for one in _causes(error):
        for holder in (one, getattr(one, "response", None)):
            headers = getattr(holder, "headers", None)
            text = str(headers.get("Retry-After", "")) if headers is not None else ""
            if text.strip().isdigit():
                return min(float(text), _PATIENCE)
    return 0.0


def _reason(error: Exception) -> str:
    status = _status(error)
    return f"it answers {status}" if status is not None else str(error) or type(error).__name__
