"""Requests to web servers: a file's facts, and ranges of its bytes.

An answer is refused unless it is the requested range of the file whose facts were read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from emberge.network.request_errors import UnsoundAnswerError, explain_failure

_SECONDS = 30.0
"""Longest time that a server may send nothing."""
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")
_STRONG_ETAG = re.compile(r'"[^"]*"')
# What stays as it is in an address: quoted already, or with a meaning.
_SAFE_CHARACTERS = "%/:=&?~#+!$,;'@()*[]"


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer of a server: status, headers by lower-case name, body (limit + 1 bytes if it is too long)."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class WebClient:
    """A client for one file on a web server; `headers` are only sent to the server of `url`."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        self.url, self._headers = quote(url, safe=_SAFE_CHARACTERS), dict(headers or {})
        self._target = self.url

    def facts(self) -> Mapping[str, str] | None:
        """Return the headers of a file by lower-case name, without its content; None if there is no file.

        Raises:
            OSError: if the attempt failed.
        """
        try:
            return self._ask("HEAD", {}, 0).headers
        except HTTPError as error:
            if error.code in (404, 410):
                return None
            raise

    def read(self, start: int, end: int, size: int, version: str) -> bytes:
        """Return the bytes from `start` up to `end` of a file with this `size` and version.

        Raises:
            UnsoundAnswerError: if the answer is another range, or too long. HTTPError: with status 412 if the
            file has another version now, other statuses for refusals. OSError: if the attempt failed, or too
            few bytes arrived.
        """
        range_headers = {"Range": f"bytes={start}-{end - 1}"}
        is_strong = _STRONG_ETAG.fullmatch(version)  # not one that fits several contents
        if is_strong:
            range_headers["If-Match"] = version
        answer = self._ask("GET", range_headers, end - start)
        etag = answer.headers.get("etag", "")
        if is_strong and _STRONG_ETAG.fullmatch(etag) and etag != version:
            raise self._build_changed_error()
        self._require_range(answer, start, end, size)
        return answer.body

    def _ask(self, method: str, headers: Mapping[str, str], most: int) -> _Answer:
        """Return the answer at the end of redirects, which are remembered for the next request."""
        target = self._target
        request = Request(target, headers=dict(headers), method=method)
        if target == self.url:
            for name, value in self._headers.items():
                request.add_unredirected_header(name, value)
        try:
            with explain_failure(self.url), urlopen(request, timeout=_SECONDS) as answer:
                self._target = answer.url
                found = {name.lower(): value for name, value in answer.headers.items()}
                return _Answer(answer.status, found, answer.read(most + 1))
        except HTTPError as error:
            error.close()
            if target == self.url or error.code not in (400, 401, 403, 404, 410):
                raise
        self._target = self.url  # addresses of a hub's storage expire
        return self._ask(method, headers, most)

    def _require_range(self, answer: _Answer, start: int, end: int, size: int) -> None:
        """Require that an answer has the requested range."""
        expected = f"bytes {start}-{end - 1}/{size}"
        if answer.status == 206:
            sent_range = _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", "").strip())
            if sent_range is None or (int(sent_range[1]), int(sent_range[2])) != (start, end - 1):
                raise UnsoundAnswerError(
                    f"{self.url}: answers {answer.headers.get('content-range', 'nothing')} when asked for "
                    f"{expected}; download the model's folder and name that"
                )
            if sent_range[3] not in ("*", str(size)):
                raise self._build_changed_error()
        elif (start, end) != (0, size):
            raise self._build_range_error("the whole file")
        if len(answer.body) > end - start:
            raise self._build_range_error(f"more than {end - start:,} bytes")
        if len(answer.body) < end - start:
            raise OSError(f"{len(answer.body):,} bytes in place of {end - start:,}")

    def _build_changed_error(self) -> HTTPError:
        return HTTPError(self.url, 412, "another version", None, None)  # type: ignore[arg-type]

    def _build_range_error(self, sent: str) -> UnsoundAnswerError:
        return UnsoundAnswerError(
            f"{self.url}: its server ignores ranges (it sends {sent}), so that no part of it can be read; "
            "download the model's folder and name that"
        )
