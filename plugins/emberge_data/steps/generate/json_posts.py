"""Requests that send JSON to a web service and get JSON back, bounded in bytes and in time.

A service may charge for each request, so a request is sent once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from emberge.network import UnsoundAnswerError, explain_failure
from emberge.wording import human_size

_LONGEST_WAIT = 60.0


@dataclass(frozen=True, slots=True)
class PostAnswer:
    """The answer of a web service: status, body, and the seconds that it asks to wait."""

    status: int
    body: bytes
    wait: float = 0.0


def post_json(
    url: str, content: bytes, headers: Mapping[str, str], *, seconds: float, most: int
) -> PostAnswer:
    """Send JSON to a web service and return its answer, of any status, with at most `most` bytes.

    Raises:
        UnreachableError: if there is no such server.
        UnsoundAnswerError: if the answer is too long.
        TimeoutError: if nothing comes for `seconds`.
        OSError: if the attempt failed otherwise.
    """
    request = Request(url, content, {"Content-Type": "application/json"})
    for name, value in headers.items():
        request.add_unredirected_header(name, value)
    with explain_failure(url):
        try:
            answer = urlopen(request, timeout=seconds)
        except HTTPError as error:
            answer = error
        except TimeoutError:
            raise TimeoutError(f"no answer within {seconds:g} s") from None
        with answer:
            body = answer.read(most + 1)
    if len(body) > most:
        raise UnsoundAnswerError(f"{url}: its answer has more than {human_size(most)}")
    return PostAnswer(answer.status, body, _read_wait(answer.headers))


def _read_wait(headers: Mapping[str, str]) -> float:
    """Return the seconds that a server asks to wait, 0 if it asks for none; at most 60."""
    wait = (headers.get("Retry-After") or "").strip()
    return min(float(wait), _LONGEST_WAIT) if wait.isdigit() and len(wait) < 9 else 0.0
