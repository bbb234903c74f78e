"""Requests to web services: sent once, bounded in bytes and time, and never on to another server."""

from __future__ import annotations

import time

import pytest
from emberge.network import (
    Stop,
    UnreachableError,
    UnsoundAnswerError,
    is_loopback,
    is_safe_for_secrets,
    post_json,
)
from emberge.network.request_errors import ForbiddenAddressError, RequestStoppedError

from tests.support.chat_server import ChatService, Wrong, serving_chat

BODY = b'{"messages": [{"content": "hello"}]}'


def post(
    service: ChatService, seconds: float = 5.0, most: int = 100, stop: Stop | None = None
) -> tuple[int, bytes, float]:
    url = f"{service.url}/chat/completions"
    answer = post_json(
        url, BODY, {"Authorization": "Bearer k"}, seconds=seconds, most=most, stop=stop
    )
    return answer.status, answer.body, answer.wait


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (Wrong(200, b"{}"), (200, b"{}", 0.0)),
        (Wrong(429, b"busy", {"Retry-After": "7"}), (429, b"busy", 7.0)),
        (Wrong(503, b"", {"Retry-After": "99999"}), (503, b"", 60.0)),
        (Wrong(400, b"no", {"Retry-After": "soon"}), (400, b"no", 0.0)),
    ],
)
def test_an_answer_of_any_status_has_its_text_and_the_time_to_wait(
    wrong: Wrong, expected: tuple[int, bytes, float]
) -> None:
    with serving_chat(lambda _: wrong) as service:
        assert post(service) == expected
        assert service.keys == {"Bearer k": 1}


def test_an_answer_that_is_too_long_is_refused() -> None:
    with (
        serving_chat(lambda _: Wrong(200, b"x" * 101)) as service,
        pytest.raises(UnsoundAnswerError),
    ):
        post(service)


def test_a_redirect_is_refused_and_names_where_it_leads() -> None:
    wrong = Wrong(302, headers={"Location": "https://example.com/v1"})
    with serving_chat(lambda _: wrong) as service:
        with pytest.raises(ForbiddenAddressError, match=r"https://example\.com/v1"):
            post(service)
        assert len(service.asked) == 1


def test_a_slow_answer_ends_after_its_time_and_a_stopped_one_at_once() -> None:
    with serving_chat(lambda _: Wrong(seconds=1.5)) as service:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            post(service, seconds=0.3)
        assert time.monotonic() - began < 1.2
        stop = Stop()
        stop.set()
        with pytest.raises(RequestStoppedError):
            post(service, stop=stop)


def test_no_server_is_an_error_that_another_attempt_would_not_help() -> None:
    with serving_chat() as service:
        pass
    with pytest.raises(UnreachableError):
        post(service)


@pytest.mark.parametrize(
    ("url", "loopback", "safe"),
    [
        ("https://example.com/v1", False, True),
        ("http://example.com/v1", False, False),
        ("http://8.8.8.8/v1", False, False),
        ("http://10.0.0.5:8000/v1", False, True),
        ("http://localhost:8000/v1", True, True),
        ("http://127.0.0.1/v1", True, True),
        ("http://[::1]:1/v1", True, True),
        ("http://127.1/v1", False, False),
    ],
)
def test_a_key_is_sent_by_https_or_within_a_private_network(
    url: str, loopback: bool, safe: bool
) -> None:
    assert (is_loopback(url), is_safe_for_secrets(url)) == (loopback, safe)
