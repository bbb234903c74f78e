"""Files on a server, read by ranges through fsspec: hubs and buckets.

Connections, retries, certificates and credentials are the clients' own.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from emberge.errors import CheckpointError
from emberge.files import require_space, writing
from emberge.hashes import hash_sha256
from emberge.tensor_files.safetensors_header import RemoteFile, require_sound_header

T = TypeVar("T")

SCHEMES = ("hf://", "s3://", "gs://")
"""Kinds of addresses that are read."""
_BLOCK_BYTES = 8 << 20
_LONGEST_HEADER = 100_000_000  # the limit of the reference implementation
# Failures that may pass, as their kinds are also those of refusals.
_NO_CONNECTION = (ConnectionError, socket.gaierror, ssl.SSLError, TimeoutError)
_REFUSALS = (PermissionError, FileNotFoundError, ValueError)
# Refusals that are temporary: a request that was too slow, one that was too early, too many requests.
_TEMPORARY_STATUSES = (408, 425, 429)
# What clients call a text that changes with a file's content.
_VERSIONS = ("ETag", "etag", "blob_id", "Last-Modified", "LastModified", "mtime")


class UnreachableError(CheckpointError, ConnectionError):
    """A server that does not answer: no such name, a refused connection, too many failures."""

    exit_code = 1


def ask_server(url: str, ask: Callable[[], T], stop: threading.Event) -> T:
    """Call `ask`, which sends a request, and return its answer; a client's errors become ours.

    Raises:
        CheckpointError: if the server refuses.
        UnreachableError: if no server answers or it fails, or `stop` is set.
    """
    if stop.is_set():
        raise UnreachableError(f"{url}: the request was ended; run again")
    try:
        return ask()
    except Exception as error:  # each library has errors of its own
        if _is_refusal(error):
            reason = _find_status(error) or str(error) or "no permission"
            raise CheckpointError(
                f"{url}: its server does not give it ({reason}); see to its address, log in (`hf auth login` "
                "for a hub, credentials for a bucket), or download the model's folder and name that"
            ) from error
        raise UnreachableError(
            f"{url}: cannot be read ({error or type(error).__name__}); see to the address and the server, or "
            "try again later: what is done is kept"
        ) from error


def _is_refusal(error: Exception) -> bool:
    """Return whether another attempt would fail in the same way."""
    if any(isinstance(cause, _NO_CONNECTION) for cause in _walk_causes(error)):
        return False
    status = _find_status(error)
    if status is None:
        return isinstance(error, _REFUSALS)
    return 300 <= status < 500 and status not in _TEMPORARY_STATUSES


@dataclass
class ServerFile:
    """A file on a server in the version first seen; any number of threads may read it.

    `sha256` is the hash of the whole file, if the server provides one. `stop` ends requests and waiting.
    """

    url: str
    size: int
    version: str
    sha256: str | None = None
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._files, self._path = _open_server(self.url)
        self._local = threading.local()

    @classmethod
    def look_up(cls, url: str, stop: threading.Event | None = None) -> ServerFile | None:
        """Look up the file at an address, without its content; None if there is none.

        Raises:
            CheckpointError: if the server refuses, or provides no text that changes with the file's content.
        """
        stop = stop or threading.Event()
        info = _find_info(url, stop)
        return None if info is None else cls._build_file(url, info, stop)

    @classmethod
    def list_files(cls, url: str, stop: threading.Event | None = None) -> dict[str, ServerFile]:
        """Return all files that the server lists below an address, by their names below it.

        Raises:
            CheckpointError: if the server refuses, or cannot list files.
        """
        stop = stop or threading.Event()
        files, path = _open_server(url)
        infos = ask_server(url, lambda: files.find(path, detail=True, refresh=True), stop)
        names = {
            info_path.removeprefix(path.rstrip("/")).lstrip("/"): info_path for info_path in infos
        }
        return {
            name: cls._build_file(f"{url}/{name}", infos[info_path], stop)
            for name, info_path in names.items()
        }

    @classmethod
    def _build_file(cls, url: str, info: Mapping[str, Any], stop: threading.Event) -> ServerFile:
        """Return the file that a client describes; the version is the first that it names."""
        size = info.get("size")
        sha256 = getattr(info.get("lfs"), "sha256", None)
        version = sha256 or next((info[name] for name in _VERSIONS if info.get(name)), None)
        if size is None or version is None:
            missing_fact = "size" if size is None else "ETag, nor a date"
            raise CheckpointError(
                f"{url}: its server gives no {missing_fact}, so that a change while it is read could not be "
                "seen; download the model's folder and name that"
            )
        return cls(url, int(size), str(version), sha256, stop)

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` up to `end`."""
        if start == end:
            return b""
        return ask_server(self.url, lambda: self._read(start, end), self.stop)

    def _read(self, start: int, end: int) -> bytes:
        """Return a range by the thread's open file; one that failed is not used again."""
        opened = getattr(self._local, "opened", None)
        if opened is None:  # without a buffer, which would read more than is asked for
            opened = self._files.open(self._path, "rb", cache_type="none")
        self._local.opened = None
        opened.seek(start)
        content = bytes(opened.read(end - start))
        if len(content) != end - start:
            raise OSError(f"{len(content):,} bytes in place of {end - start:,}")
        self._local.opened = opened
        return content

    def build_note(self) -> RemoteFile:
        """Return the note of a safetensors file; only the header of the file is read.

        Raises:
            CheckpointError: if the file does not begin with a valid header.
        """
        length_field = self.read(0, min(8, self.size))
        length = int.from_bytes(length_field, "little")
        if len(length_field) < 8 or length > min(self.size - 8, _LONGEST_HEADER):
            raise CheckpointError(
                f"{self.url}: is truncated or no safetensors file, as its header has {length:,} bytes and "
                f"the file has {self.size:,}; get the file again"
            )
        header = length_field + self.read(8, 8 + length)
        require_sound_header(self.url, header, self.size)
        return RemoteFile(self.url, self.size, self.version, self.sha256, header)

    def copy(self, path: Path) -> None:
        """Write the whole file to `path`, and check its hash or, without one, its version.

        Raises:
            CheckpointError: if the content does not have the server's hash, or the file has changed.
            EmbergeError: if the disk has no room for it.
        """
        require_space(path.parent, self.size)
        with path.open("wb") as out:
            for start in range(0, self.size, _BLOCK_BYTES):
                piece = self.read(start, min(self.size, start + _BLOCK_BYTES))
                with writing(path.parent, "what is read from a server"):
                    out.write(piece)
        if self.sha256 is None:
            self.require_unchanged()
        else:
            self.require_hash(hash_sha256(path))

    def require_unchanged(self) -> None:
        """Require that the file on the server has not changed."""
        now = self.look_up(self.url, self.stop)
        if now is None or (now.size, now.version) != (self.size, self.version):
            raise CheckpointError(
                f"{self.url}: has changed on its server since it was looked at; run again, from its new "
                "content"
            )

    def require_hash(self, digest: str) -> None:
        """Require that the SHA-256 of the content that was read is the server's."""
        if digest != self.sha256:
            raise CheckpointError(
                f"{self.url}: what came has SHA-256 {digest[:12]}…, and its server gives "
                f"{str(self.sha256)[:12]}…; run again, and if it remains let the server's owner know"
            )


def _open_server(url: str) -> tuple[Any, str]:
    """Return fsspec's client for an address, and the path in it."""
    if not url.startswith(SCHEMES):
        raise CheckpointError(
            f"{url}: only {', '.join(SCHEMES)} are read; write a file's path without a scheme"
        )
    from fsspec.core import url_to_fs

    try:
        return url_to_fs(url)  # type: ignore[no-any-return]
    except ImportError as error:
        raise CheckpointError(f"{url}: {error}; pip install 'emberge[remote]'") from error


def _find_info(url: str, stop: threading.Event) -> Mapping[str, Any] | None:
    """Return what the server's client currently gives of a file; None if there is no such file."""
    files, path = _open_server(url)

    def ask() -> Mapping[str, Any] | None:
        files.invalidate_cache()
        try:
            return dict(files.info(path))
        except FileNotFoundError as error:
            reason, status = error.__cause__, _find_status(error)
        # Some clients call every failure so.
        if isinstance(reason, Exception) and status not in (404, 410):
            raise reason
        return None

    return ask_server(url, ask, stop)


def _find_status(error: BaseException) -> int | None:
    """Return the HTTP status behind an error of any client; None without one."""
    statuses = [
        getattr(getattr(c, "response", None), "status_code", None) for c in _walk_causes(error)
    ]
    return next((status for status in statuses if isinstance(status, int)), None)


def _walk_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the chain of its causes."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__
