"""Requests to web servers: a file's facts, and ranges of its bytes, each answer checked and bounded.

An answer is refused unless it is the requested range, uncompressed, of the file whose facts were read.
Redirects are followed if `require_redirect` allows it. Any number of threads may use a client: each request
takes a connection, which then stays open for a while for the next request.
"""

from __future__ import annotations

import http.client
import os
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urljoin, urlsplit

from emberge.network.addresses import Origin, require_redirect
from emberge.network.connection import WatchedSocket, connect
from emberge.network.interruptible import Stop
from emberge.network.request_errors import ForbiddenAddressError, StatusError, UnsoundAnswerError
from emberge.wording import printable

_MOST_REDIRECTS = 5
_REDIRECT_STATUSES = (301, 302, 303, 307, 308)
HEADER_BYTES = 256 << 10
"""Largest number of bytes of an answer without its body: status, headers, lengths of chunks."""
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_STRONG_ETAG = re.compile(r'"[^"]*"')
# What stays as it is in an address: quoted already, or with a meaning.
_SAFE_CHARACTERS = "%/:=&?~#+!$,;'@()*[]"
_LONGEST_WAIT = 60.0
# Connections to a server that are kept open without use, and for how many seconds.
_MOST_OPEN, _KEPT_OPEN = 8, 10.0


class WatchedConnection(http.client.HTTPConnection):
    """A connection whose socket is opened and watched by `connect`."""

    def __init__(self, origin: Origin) -> None:
        super().__init__(origin.host, origin.port)
        self.origin = origin
        self.stop: Stop | None = None
        self.left = 0.0

    def connect(self) -> None:
        """Open the watched socket."""
        tls = self.origin.scheme == "https"
        self.sock = connect(self.host, self.port, lambda: self.stop, tls=tls)

    def begin(self, stop: Stop | None, allowed: int, seconds: float | None = None) -> None:
        """Start a request that `stop` ends, and whose whole answer may have `allowed` bytes.

        With `seconds`, the answer may come slowly within so many seconds.
        """
        self.stop = stop
        if self.sock is None:
            self.connect()
        assert isinstance(self.sock, WatchedSocket)
        self.sock.begin(allowed, seconds)


class _IdlePool:
    """A pool of idle open connections, shared by all clients and threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[Origin, list[WatchedConnection]] = {}
        os.register_at_fork(after_in_child=self._free.clear)

    def take(self, origin: Origin) -> WatchedConnection:
        """Return a connection to a server for the caller's use, an open one if available."""
        with self._lock:
            free = self._free.get(origin, [])
            while free:
                connection = free.pop()
                if time.monotonic() - connection.left < _KEPT_OPEN:
                    return connection
                connection.close()
        return WatchedConnection(origin)

    def leave(self, connection: WatchedConnection) -> None:
        """Keep a connection for the next request, if it is open."""
        if connection.sock is None:
            return
        connection.left, connection.stop = time.monotonic(), None
        with self._lock:
            free = self._free.setdefault(connection.origin, [])
            free.append(connection)
            if len(free) > _MOST_OPEN:
                free.pop(0).close()


_IDLE = _IdlePool()


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer of a server: status, headers by lower-case name, body (limit + 1 bytes if it is too long)."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes


class WebClient:
    """A client for one file on a web server; `headers` are only sent to the server of `url`."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        stop: Stop | None = None,
    ) -> None:
        self.url, self._headers, self._stop = url, dict(headers or {}), stop
        self._named = Origin.of(url)
        self._target: str | None = None

    def facts(self) -> Mapping[str, str] | None:
        """Return the headers of a file by lower-case name, without its content; None if there is no file.

        Raises:
            ForbiddenAddressError: if a redirect leads elsewhere.
            UnsoundAnswerError: if the answer is unusable and another attempt would not help.
            OSError: if the attempt failed.
        """
        answer = self._follow_redirects("HEAD", {}, 0)
        if answer.status in (404, 410):
            return None
        self._require_success(answer)
        return answer.headers

    def read(self, start: int, end: int, size: int, version: str) -> bytes:
        """Return the bytes from `start` up to `end` of a file with this `size` and version.

        Raises:
            ForbiddenAddressError: if a redirect leads elsewhere. UnsoundAnswerError: if the answer is another
            range, compressed, too long, or too slow. StatusError: with status 412 if the file has another
            version now, other statuses for other refusals. OSError: if the attempt failed, or too few bytes
            arrived.
        """
        range_headers = {"Range": f"bytes={start}-{end - 1}"}
        if _STRONG_ETAG.fullmatch(version):  # not one that fits several contents
            range_headers["If-Match"] = version
        answer = self._follow_redirects("GET", range_headers, end - start)
        self._require_success(answer)
        self._require_version(answer, version)
        self._require_range(answer, start, end, size)
        return answer.body

    def _follow_redirects(self, method: str, headers: Mapping[str, str], most: int) -> _Answer:
        """Return the answer at the end of redirects, which are remembered for the next request."""
        url, redirected = self._target or self.url, self._target is not None
        for _ in range(_MOST_REDIRECTS):
            answer = self._ask(method, url, headers, most)
            if redirected and answer.status in (400, 401, 403, 404, 410):
                # Addresses of a hub's storage expire.
                url, redirected, self._target = self.url, False, None
            elif answer.status in _REDIRECT_STATUSES and "location" in answer.headers:
                url = urljoin(url, _quote_address(answer.headers["location"]))
                require_redirect(self._named, Origin.of(url))
            else:
                self._target = url if url != self.url else None
                return answer
        raise UnsoundAnswerError(f"{self.url}: leads from address to address; see to its address")

    def _ask(self, method: str, url: str, headers: Mapping[str, str], most: int) -> _Answer:
        """Return the answer to one request, with at most `most` + 1 bytes of its body."""
        origin = Origin.of(url)
        named_headers = self._headers if origin == self._named else {}
        sent = {"Accept-Encoding": "identity", **headers, **named_headers}
        while True:
            connection = _IDLE.take(origin)
            was_used = connection.sock is not None
            try:
                connection.begin(self._stop, most + HEADER_BYTES)
                connection.request(method, build_request_path(url), headers=sent)
                answer = self._read_answer(connection, method, url, most)
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                connection.close()
                if not was_used:
                    raise
                continue  # the server had closed it meanwhile
            except http.client.HTTPException as error:
                connection.close()
                raise OSError(f"{type(error).__name__} {error}".strip()) from error
            except BaseException:
                connection.close()
                raise
            _IDLE.leave(connection)
            return answer

    def _read_answer(
        self, connection: WatchedConnection, method: str, url: str, most: int
    ) -> _Answer:
        """Return the answer to the request that was sent."""
        with connection.getresponse() as response:
            headers = {name.lower(): value for name, value in response.getheaders()}
            body = b""
            if response.status in (200, 206):
                self._require_plain(headers)
                if method != "HEAD":
                    self._require_length(headers, most)
                    body = response.read(most + 1)
            if not response.isclosed():
                connection.close()  # what was not read is in the way of the next answer
        return _Answer(url, response.status, headers, body)

    def _require_plain(self, headers: Mapping[str, str]) -> None:
        coding = headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("", "identity"):
            raise UnsoundAnswerError(
                f"{self.url}: comes compressed ({printable(coding, 40)}), which was not asked for: its bytes "
                "cannot be read in part; download the model's folder and name that"
            )

    def _require_length(self, headers: Mapping[str, str], most: int) -> None:
        """Require that an answer announces no more bytes than requested."""
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > most:
            raise self._build_range_error(f"{int(length):,} bytes in place of {most:,}")

    def _require_success(self, answer: _Answer) -> None:
        if answer.status in (200, 206):
            return
        raise StatusError(self.url, answer.status, read_wait(answer.headers))

    def _require_version(self, answer: _Answer, version: str) -> None:
        """Require that a part is of the expected version, if the server names the version."""
        etag = answer.headers.get("etag")
        is_strong = (
            etag is not None and _STRONG_ETAG.fullmatch(etag) and _STRONG_ETAG.fullmatch(version)
        )
        if is_strong and etag != version:
            raise StatusError(self.url, 412)

    def _require_range(self, answer: _Answer, start: int, end: int, size: int) -> None:
        """Require that an answer has the requested range."""
        expected = f"bytes {start}-{end - 1}/{size}"
        if answer.status == 206:
            sent_range = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", "").strip())
            if sent_range is None or (int(sent_range[1]), int(sent_range[2])) != (start, end - 1):
                shown = printable(answer.headers.get("content-range", "nothing"), 80)
                raise UnsoundAnswerError(
                    f"{self.url}: answers {shown} when asked for {expected}; download the model's folder and "
                    "name that"
                )
            if sent_range[3] not in ("*", str(size)):
                raise StatusError(self.url, 412)
        elif (start, end) != (0, size):
            raise self._build_range_error("the whole file")
        if len(answer.body) > end - start:
            raise self._build_range_error(f"more than {end - start:,} bytes")
        if len(answer.body) < end - start:
            raise OSError(f"{len(answer.body):,} bytes in place of {end - start:,}")

    def _build_range_error(self, sent: str) -> UnsoundAnswerError:
        return UnsoundAnswerError(
            f"{self.url}: its server ignores ranges (it sends {sent}), so that no part of it can be read; "
            "download the model's folder and name that"
        )


def read_wait(headers: Mapping[str, str]) -> float:
    """Return the seconds that a server asks to wait, 0 if it asks for none; at most 60."""
    wait = headers.get("retry-after", "").strip()
    return min(float(wait), _LONGEST_WAIT) if wait.isdigit() and len(wait) < 9 else 0.0


def _quote_address(location: str) -> str:
    """Return a redirect's target with special characters escaped.

    Raises:
        ForbiddenAddressError: if the address contains a name and password.
    """
    address = quote(location.strip(), safe=_SAFE_CHARACTERS)
    if "@" in urlsplit(address).netloc:
        raise ForbiddenAddressError(
            f"{printable(location, 200)}: leads to an address with a name in it; name the address itself"
        )
    return address


def build_request_path(url: str) -> str:
    """Return the path and the query of an address, with special characters escaped."""
    parts = urlsplit(url)
    path = quote(parts.path or "/", safe=_SAFE_CHARACTERS)
    return f"{path}?{quote(parts.query, safe=_SAFE_CHARACTERS)}" if parts.query else path
