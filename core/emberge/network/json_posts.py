"""Requests that send JSON to a web service and get JSON back, bounded in bytes and in time.

A service may charge for each request. So a request is sent once, over a connection of its own: an idle
connection that the server had closed would make it necessary to send it again. A redirect is not followed, as
it would take keys and texts to a server that was not named.
"""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urldefrag

from emberge.network.addresses import Origin
from emberge.network.interruptible import Stop
from emberge.network.request_errors import ForbiddenAddressError, UnsoundAnswerError
from emberge.network.web_client import (
    HEADER_BYTES,
    WatchedConnection,
    build_request_path,
    read_wait,
)
from emberge.wording import human_size, printable

_REDIRECTS = range(300, 400)


@dataclass(frozen=True, slots=True)
class PostAnswer:
    """The answer of a web service: status, body, and the seconds that it asks to wait."""

    status: int
    body: bytes
    wait: float = 0.0


def post_json(
    url: str,
    content: bytes,
    headers: Mapping[str, str],
    *,
    seconds: float,
    most: int,
    stop: Stop | None = None,
) -> PostAnswer:
    """Send JSON to a web service and return its answer, of any status, with at most `most` bytes.

    Raises:
        ForbiddenAddressError: if the address is not allowed, or the answer is a redirect.
        UnreachableError: if there is no such server.
        UnsoundAnswerError: if the answer is too long.
        RequestStoppedError: if `stop` is set in the meantime.
        TimeoutError: if the answer takes longer than `seconds`.
        OSError: if the attempt failed otherwise.
    """
    connection = WatchedConnection(Origin.of(url))
    sent = {"Content-Type": "application/json", "Accept-Encoding": "identity", **headers}
    try:
        connection.begin(stop, most + HEADER_BYTES, seconds)
        connection.request("POST", build_request_path(url), body=content, headers=sent)
        with connection.getresponse() as response:
            body = response.read(most + 1)
            names = {name.lower(): value for name, value in response.getheaders()}
            status = response.status
    except http.client.HTTPException as error:
        raise OSError(f"{type(error).__name__} {error}".strip()) from error
    finally:
        connection.close()
    if status in _REDIRECTS:
        # The query of a redirect may repeat the request, including its key.
        address = urldefrag(names.get("location", "nowhere")).url.partition("?")[0]
        target = printable(address, 200)
        raise ForbiddenAddressError(
            f"{url}: leads to {target}, and no request is sent on; name that address if you trust it"
        )
    if len(body) > most:
        raise UnsoundAnswerError(f"{url}: its answer has more than {human_size(most)}")
    return PostAnswer(status, body, read_wait(names))
