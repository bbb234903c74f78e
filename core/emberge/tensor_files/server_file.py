"""Files on a server, read by ranges through fsspec: hubs, S3-compatible buckets, plain web servers.

A request that failed temporarily is repeated, and a file that changes between requests is refused.
"""

from __future__ import annotations

import itertools
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from emberge.errors import CheckpointError
from emberge.files import JSON_LIMIT, require_space, writing
from emberge.hashes import sha256_of
from emberge.tensor_files.remote_file import RemoteFile, is_address, require_scheme, server_cache
from emberge.tensor_files.safetensors_header import (
    header_size,
    read_header,
    require_sound_header,
)
from emberge.wording import human_size

T = TypeVar("T")

# Seconds before each further attempt: a server that answers nine in ten fails all eight once in 10^8 blocks.
_WAITS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
_BLOCK_BYTES = 8 << 20
_WEIGHTS = (".safetensors", ".bin")
# Longest time that a server may send nothing, in seconds.
_SILENCE = 30.0
# Longest time that a server may ask to wait, in seconds.
_PATIENCE = 60.0
# Seconds after the first attempt from which on no further attempt begins.
_ENOUGH = 180.0
# Refusals that are temporary: a request that was too slow, one that was too early, too many requests.
_TEMPORARY_STATUSES = (408, 425, 429)
# Failures of connecting for which another attempt would not help.
_NO_CONNECTION = (ConnectionRefusedError, socket.gaierror, ssl.SSLError)
# Errors of clients; fsspec raises ValueError if a server does not serve ranges.
_REFUSALS = (PermissionError, FileNotFoundError, ValueError)
_STRONG_ETAG = re.compile(r'"[^"]*"')
# What clients call a text that changes with a file's content.
_VERSIONS = ("ETag", "etag", "blob_id", "Last-Modified", "LastModified", "mtime")


class UnreachableError(CheckpointError, ConnectionError):
    """A server that does not answer: no such name, a refused connection, too many failures."""

    exit_code = 1


class RequestStoppedError(CheckpointError):
    """The error for a request that ended because the work around it did."""

    exit_code = 1


def retry_request(url: str, ask: Callable[[], T], stop: threading.Event) -> T:
    """Call `ask`, with growing waits between retries while the server fails, and return its answer.

    Raises:
        CheckpointError: if the server refuses, so that another attempt would not help.
        UnreachableError: if no server answers, or the last attempt failed.
        RequestStoppedError: if `stop` is set.
    """
    start_time = time.monotonic()
    for number in itertools.count(1):
        try:
            return ask()
        except Exception as error:  # each library has errors of its own
            refusal = _find_refusal(url, error)
            if refusal is not None:
                raise refusal from error
            if number > len(_WAITS) or time.monotonic() - start_time > _ENOUGH:
                raise UnreachableError(
                    f"{url}: cannot be read ({_explain_failure(error)}, {number} times); try again later: "
                    "what is done is kept"
                ) from error
            wait = max(_WAITS[number - 1], _read_requested_wait(error))
        if stop.wait(wait):
            raise RequestStoppedError(f"{url}: the request was ended; run again")
    raise AssertionError(url)


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

    @staticmethod
    def reads(reference: str) -> bool:
        """Return whether a reference is an address of a supported kind of server."""
        return is_address(reference)

    @staticmethod
    def cache() -> Path:
        """Return the cache of files from servers."""
        return server_cache()

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
        """Return all files that the server lists below an address, by address.

        Raises:
            CheckpointError: if the server refuses, or cannot list files.
        """
        stop = stop or threading.Event()
        files, path = _open_server(url)
        found = retry_request(url, lambda: files.find(path, detail=True, refresh=True), stop)
        names = {name.removeprefix(path.rstrip("/")).lstrip("/"): found[name] for name in found}
        return {
            f"{url}/{name}": cls._build_file(f"{url}/{name}", info, stop)
            for name, info in names.items()
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
        """Return the bytes from `start` up to `end`.

        Raises:
            CheckpointError: if the server refuses, ignores ranges or fails repeatedly, or if the file has
                changed since `look_up`.
        """
        if start == end:
            return b""
        return retry_request(self.url, lambda: self._read(start, end), self.stop)

    def _read(self, start: int, end: int) -> bytes:
        """Return a range by the thread's open file; one that failed is not used again."""
        opened = getattr(self._local, "opened", None) or self._open()
        self._local.opened = None
        opened.seek(start)
        content = bytes(opened.read(end - start))
        if len(content) != end - start:
            raise OSError(f"{len(content):,} bytes in place of {end - start:,}")
        self._local.opened = opened
        return content

    def _open(self) -> Any:
        """Open the file without a buffer, which would read more than is asked for.

        A bucket's client compares the file with the one that it opened; a web server is asked to.
        """
        options: dict[str, Any] = {}
        if self.url.startswith("http"):
            headers = {"Accept-Encoding": "identity"}
            if _STRONG_ETAG.fullmatch(self.version):  # not one that fits several contents
                headers["If-Match"] = self.version
            options = {"size": self.size, "headers": headers}
        return self._files.open(self._path, "rb", cache_type="none", **options)

    def build_note(self) -> RemoteFile:
        """Return the note of a safetensors file; only the header of the file is read.

        Raises:
            CheckpointError: if the file does not begin with a valid header.
        """
        opening = self.read(0, min(8, self.size))
        header = opening + self.read(8, header_size(self.url, opening, self.size))
        require_sound_header(self.url, header, self.size)
        return RemoteFile(self.url, self.size, self.version, self.sha256, header)

    def read_json(self) -> Any:
        """Return the value of a JSON file.

        Raises:
            CheckpointError: if the file is too long, or not JSON.
        """
        self._require_length()
        return _parse_json(self.url, self.read(0, self.size))

    def copy(self, place: Path) -> None:
        """Write the whole file to `place`, and check its hash and format.

        Raises:
            CheckpointError: if the content does not have the server's hash, a JSON file is not valid JSON, a
                file of weights has no valid header, or another file is too long.
            EmbergeError: if the disk has no room for it.
        """
        if not place.name.endswith(_WEIGHTS):
            self._require_length()
        require_space(place.parent, self.size)
        with place.open("wb") as out:
            for start in range(0, self.size, _BLOCK_BYTES):
                piece = self.read(start, min(self.size, start + _BLOCK_BYTES))
                with writing(place.parent, "what is read from a server"):
                    out.write(piece)
        if self.sha256 is not None and (digest := sha256_of(place)) != self.sha256:
            raise wrong_hash_error(self, digest)
        self._require_readable(place)

    def _require_length(self) -> None:
        if self.size > JSON_LIMIT:
            raise CheckpointError(
                f"{self.url}: has {human_size(self.size)}; of files that are no weights at most "
                f"{human_size(JSON_LIMIT)} are read"
            )

    def _require_readable(self, copy: Path) -> None:
        """Require that a copy has the format of its name, before it is cached."""
        if copy.suffix == ".json":
            _parse_json(self.url, copy.read_bytes())
        elif copy.suffix == ".safetensors":
            read_header(copy)

    def require_unchanged(self) -> None:
        """Require that the file on the server has not changed.

        Raises:
            CheckpointError: if it has changed or no longer exists.
        """
        now = self.look_up(self.url, self.stop)
        if now is None or (now.size, now.version) != (self.size, self.version):
            raise _build_changed_error(self.url)


def wrong_hash_error(file: ServerFile, found: str) -> CheckpointError:
    """Return the error for content whose hash differs from the server's."""
    return CheckpointError(
        f"{file.url}: what came has SHA-256 {found[:12]}…, and its server gives "
        f"{str(file.sha256)[:12]}…; run again, and if it remains let the server's owner know"
    )


def _open_server(url: str) -> tuple[Any, str]:
    """Return fsspec's client for an address, and the path in it.

    Raises:
        CheckpointError: if the address has an unsupported scheme, or the package for it is missing.
    """
    require_scheme(url)
    from fsspec.core import url_to_fs

    options: dict[str, Any] = {}
    if url.startswith("http"):
        from aiohttp import ClientTimeout

        silence = ClientTimeout(total=None, sock_connect=_SILENCE, sock_read=_SILENCE)
        options["client_kwargs"] = {"trust_env": True, "timeout": silence}
    try:
        return url_to_fs(url, **options)  # type: ignore[no-any-return]
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
            reason, status = error.__cause__, _status_of(error)
        # Some clients call every failure so.
        if isinstance(reason, Exception) and status not in (404, 410):
            raise reason
        return None

    return retry_request(url, ask, stop)


def _parse_json(url: str, content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{url}: cannot be read as JSON ({error}); get it again") from None


def _build_changed_error(url: str) -> CheckpointError:
    return CheckpointError(
        f"{url}: has changed on its server since it was looked at; run again, from its new content"
    )


def _find_refusal(url: str, error: Exception) -> CheckpointError | None:
    """Return the error to raise for a permanent failure; None for a temporary one."""
    status = _status_of(error)
    reason = next((cause for cause in _causes(error) if isinstance(cause, _NO_CONNECTION)), None)
    if status == 412:
        return _build_changed_error(url)
    if reason is not None:
        return UnreachableError(
            f"{url}: no connection ({reason}); see to the address and the server"
        )
    is_refused = status is not None and 300 <= status < 500 and status not in _TEMPORARY_STATUSES
    if is_refused or isinstance(error, _REFUSALS):
        return CheckpointError(
            f"{url}: its server does not give it ({status or str(error) or 'no permission'}); see to its "
            "address, log in (`hf auth login` for a hub, credentials for a bucket), or download the model's "
            "folder and name that"
        )
    return None


def _status_of(error: BaseException) -> int | None:
    """Return the HTTP status behind an error of any client; None without one."""
    for cause in _causes(error):
        response = getattr(cause, "response", None)
        if isinstance(response, Mapping):  # that of buckets' client
            response_status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        else:
            response_status = getattr(response, "status_code", None)
        for status in (getattr(cause, "status", None), response_status):
            if isinstance(status, int):
                return status
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the chain of its causes."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__


def _read_requested_wait(error: Exception) -> float:
    """Return the seconds that a server asks to wait, up to a limit."""
    for cause in _causes(error):
        for holder in (cause, getattr(cause, "response", None)):
            headers = getattr(holder, "headers", None)
            text = str(headers.get("Retry-After", "")) if headers is not None else ""
            if text.strip().isdigit():
                return min(float(text), _PATIENCE)
    return 0.0


def _explain_failure(error: Exception) -> str:
    status = _status_of(error)
    return f"it answers {status}" if status is not None else str(error) or type(error).__name__
