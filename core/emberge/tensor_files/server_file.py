"""Files on a server, read by ranges: hubs, S3-compatible buckets, plain web servers.

A request that failed temporarily is repeated, and a file that changes between requests is refused.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from emberge.errors import CheckpointError
from emberge.files import JSON_LIMIT, require_space, writing
from emberge.hashes import sha256_of
from emberge.network import UnreachableError, call_again, is_address
from emberge.tensor_files.remote_file import RemoteFile, server_cache
from emberge.tensor_files.safetensors_header import header_size, parse_header
from emberge.tensor_files.server_kinds import ServerFacts, causes, files_below, server_of, status_of
from emberge.wording import human_size

T = TypeVar("T")

# Seconds before each further attempt: a server that answers nine in ten fails all eight once in 10^8 blocks.
_WAITS = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
_BLOCK_BYTES = 8 << 20
_WEIGHTS = (".safetensors", ".bin")
# Longest time that a server may ask to wait, in seconds.
_PATIENCE = 60.0
# Seconds after the first attempt from which on no further attempt begins.
_ENOUGH = 180.0
# Refusals that are temporary: a request that was too slow, one that was too early, too many requests.
_TEMPORARY_STATUSES = (408, 425, 429)


def retry_request(url: str, ask: Callable[[], T], stop: threading.Event | None = None) -> T:
    """Call `ask`, with growing waits between retries while the server fails, and return its answer.

    Raises:
        CheckpointError: if the server refuses, so that another attempt would not help.
        UnreachableError: if no server answers, or the last attempt failed.
        RequestStoppedError: if `stop` is set.
    """
    start_time = time.monotonic()

    def wait_after(error: Exception, number: int) -> float:
        if isinstance(error, CheckpointError):
            raise _add_address(url, error) from error.__cause__
        refusal = _find_refusal(url, error)
        if refusal is not None:
            raise refusal from error
        if number > len(_WAITS) or time.monotonic() - start_time > _ENOUGH:
            raise UnreachableError(
                f"{url}: cannot be read ({_explain_failure(error)}, {number} times); try again later: "
                "what is done is kept"
            ) from error
        return max(_WAITS[number - 1], _read_requested_wait(error))

    return call_again(url, ask, wait_after, stop)


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
        self._server = server_of(self.url)

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
        server = server_of(url)
        facts = retry_request(url, server.look, stop)
        return None if facts is None else cls._build_file(url, facts, stop)

    @classmethod
    def list_files(cls, url: str, stop: threading.Event | None = None) -> dict[str, ServerFile]:
        """Return all files that the server lists below an address, by address.

        Raises:
            CheckpointError: if the server refuses, or cannot list files.
        """
        stop = stop or threading.Event()
        facts_by_name = retry_request(url, lambda: files_below(url), stop)
        return {
            f"{url}/{name}": cls._build_file(f"{url}/{name}", facts, stop)
            for name, facts in facts_by_name.items()
        }

    @classmethod
    def _build_file(cls, url: str, facts: ServerFacts, stop: threading.Event) -> ServerFile:
        if facts.size is None or facts.version is None:
            missing_fact = "size" if facts.size is None else "ETag, nor a date"
            raise CheckpointError(
                f"{url}: its server gives no {missing_fact}, so that a change while it is read could not be "
                "seen; download the model's folder and name that"
            )
        return cls(url, facts.size, facts.version, facts.sha256, stop)

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` up to `end`.

        Raises:
            CheckpointError: if the server refuses, ignores ranges or fails repeatedly, or if the file has
                changed since `look_up`.
        """
        if start == end:
            return b""
        facts = ServerFacts(self.size, self.version, self.sha256)
        return retry_request(self.url, lambda: self._read(start, end, facts), self.stop)

    def build_note(self) -> RemoteFile:
        """Return the note of a safetensors file; only the header of the file is read.

        Raises:
            CheckpointError: if the file does not begin with a valid header.
        """
        opening = self.read(0, min(8, self.size))
        header = opening + self.read(8, header_size(self.url, opening, self.size))
        parse_header(self.url, header, self.size)  # what is kept is not asked for again
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
            file of
                weights has no valid header, or another file is too long.
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
            with copy.open("rb") as file:
                opening = file.read(8)
                header = file.read(header_size(self.url, opening, self.size) - 8)
            parse_header(self.url, opening + header, self.size)

    def require_unchanged(self) -> None:
        """Require that the file on the server has not changed.

        Raises:
            CheckpointError: if it has changed or no longer exists.
        """
        facts = retry_request(self.url, self._server.look, self.stop)
        if facts is None or (facts.size, facts.version) != (self.size, self.version):
            raise _build_changed_error(self.url)

    def _read(self, start: int, end: int, facts: ServerFacts) -> bytes:
        content = self._server.read(start, end, facts)
        if len(content) != end - start:
            raise OSError(f"{len(content):,} bytes in place of {end - start:,}")
        return content


def _parse_json(url: str, content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{url}: cannot be read as JSON ({error}); get it again") from None


def wrong_hash_error(file: ServerFile, found: str) -> CheckpointError:
    """Return the error for content whose hash differs from the server's."""
    return CheckpointError(
        f"{file.url}: what came has SHA-256 {found[:12]}…, and its server gives "
        f"{str(file.sha256)[:12]}…; run again, and if it remains let the server's owner know"
    )


def _add_address(url: str, error: CheckpointError) -> CheckpointError:
    """Return a connection's error with the file's address added."""
    text = str(error)
    return error if url in text else type(error)(f"{url}: {text}")


def _build_changed_error(url: str) -> CheckpointError:
    return CheckpointError(
        f"{url}: has changed on its server since it was looked at; run again, from its new content"
    )


def _find_refusal(url: str, error: Exception) -> CheckpointError | None:
    """Return the error to raise for a permanent failure; None for a temporary one."""
    status = status_of(error)
    if status == 412:
        return _build_changed_error(url)
    if status in (401, 403) or isinstance(error, PermissionError):
        return CheckpointError(
            f"{url}: its server refuses it ({status or 'no permission'}); log in (`hf auth login` for a "
            "hub), or give the credentials of the bucket"
        )
    if status in (404, 410) or isinstance(error, FileNotFoundError):
        return CheckpointError(f"{url}: is not on its server (any more); see to its address")
    if any(isinstance(one, ConnectionRefusedError) for one in causes(error)):
        return UnreachableError(f"{url}: no connection; see to the address, and to the server")
    if status is not None and 300 <= status < 500 and status not in _TEMPORARY_STATUSES:
        return CheckpointError(f"{url}: its server refuses it ({status}); see to its address")
    return None


def _read_requested_wait(error: Exception) -> float:
    """Return the seconds that a server asks to wait, up to a limit."""
    for cause in causes(error):
        if isinstance(seconds := getattr(cause, "wait", None), float):
            return min(seconds, _PATIENCE)
        for holder in (cause, getattr(cause, "response", None)):
            headers = getattr(holder, "headers", None)
            text = str(headers.get("Retry-After", "")) if headers is not None else ""
            if text.strip().isdigit():
                return min(float(text), _PATIENCE)
    return 0.0


def _explain_failure(error: Exception) -> str:
    status = status_of(error)
    return f"it answers {status}" if status is not None else str(error) or type(error).__name__
