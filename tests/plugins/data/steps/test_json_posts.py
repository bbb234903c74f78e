"""Requests to web services: sent once, and bounded in bytes and time."""

from __future__ import annotations

import pytest
from emberge.network import UnreachableError, UnsoundAnswerError
from emberge_data.steps.generate.json_posts import post_json

from tests.support.chat_server import ChatService, Wrong, serving_chat

BODY = b'{"messages": [{"content": "hello"}]}'


def post(service: ChatService, seconds: float = 5.0, most: int = 100) -> tuple[int, bytes, float]:
    url = f"{service.url}/chat/completions"
    answer = post_json(url, BODY, {"Authorization": "Bearer k"}, seconds=seconds, most=most)
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


def test_a_slow_answer_ends_after_its_time() -> None:
    with serving_chat(lambda _: Wrong(seconds=1.5)) as service, pytest.raises(TimeoutError):
        post(service, seconds=0.3)


def test_no_server_is_an_error_that_another_attempt_would_not_help() -> None:
    with serving_chat() as service:
        pass
    with pytest.raises(UnreachableError):
        post(service)
