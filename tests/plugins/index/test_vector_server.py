"""Requests of a server's vectors: the addresses that are tried, the fields, and what is asked again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from emberge import DataError, EmbergeError
from emberge.network import ServiceError, Stop
from emberge_index.served import VectorServer, vector_server

from tests.support.chat_server import Wrong
from tests.support.vector_service import serving_vectors

TEXTS = [f"text {number}" for number in range(10)]
Answer = Callable[[list[str]], Any]


def _answering(*first: Wrong) -> Answer:
    """A function that gives these answers, and vectors from then on."""
    answers = iter(first)

    def embed(texts: list[str]) -> Any:
        return next(answers, [[float(text.split()[1]), 1.0] for text in texts])

    return embed


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that are waited between requests, without waiting."""
    seconds: list[float] = []
    monkeypatch.setattr(Stop, "wait", lambda _, wait: seconds.append(wait))
    return seconds


@pytest.mark.parametrize(
    ("path", "form", "places"),
    [
        ("", None, [("openai", "/v1/embeddings"), ("tei", "/embed"), ("ollama", "/api/embed")]),
        ("/", "tei", [("tei", "/embed")]),
        ("/team", "ollama", [("ollama", "/team/api/embed")]),
        ("/v1", None, [("openai", "/v1/embeddings")]),
        ("/v1/", None, [("openai", "/v1/embeddings")]),
        ("/v1/embeddings", None, [("openai", "/v1/embeddings")]),
        ("/team/embeddings", None, [("openai", "/team/embeddings")]),
        ("/team/embeddings", "tei", [("tei", "/team/embeddings")]),
        ("/embed", None, [("tei", "/embed")]),
        ("/api/embed", None, [("ollama", "/api/embed")]),
    ],
)
def test_the_address_decides_what_is_tried(
    path: str, form: Any, places: list[tuple[str, str]]
) -> None:
    server = VectorServer(f"http://localhost:1{path}", form=form)
    assert server.list_places() == [(one, f"http://localhost:1{url}") for one, url in places]


@pytest.mark.parametrize(
    ("form", "fields"),
    [
        ("openai", {"input": TEXTS[8:], "encoding_format": "float", "model": "boom"}),
        ("tei", {"inputs": TEXTS[8:], "truncate": True}),
        ("ollama", {"input": TEXTS[8:], "model": "boom"}),
    ],
)
def test_each_form_has_its_fields(form: Any, fields: dict[str, Any]) -> None:
    with serving_vectors(_answering()) as service:
        found, _ = VectorServer(service.url, "boom", form).embed(TEXTS)
    assert service.requests[-1][1] == fields
    assert found.rows.tolist() == [[float(number), 1.0] for number in range(10)]
    assert found.places == tuple(range(10))


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_form_that_is_not_there_is_followed_by_the_next(status: int) -> None:
    with serving_vectors(_answering(Wrong(status))) as service:
        _, url = VectorServer(service.url).embed(TEXTS)
    assert url == f"{service.url}/embed"


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_server_that_is_busy_for_a_moment_is_asked_again(status: int, waits: list[float]) -> None:
    with serving_vectors(_answering(Wrong(status), Wrong(status))) as service:
        found, _ = VectorServer(service.url, form="openai").embed(TEXTS)
    assert len(found.rows) == 10
    assert waits == [0.5, 1.0]


def test_the_wait_that_a_server_asks_for_is_kept_up_to_a_limit(waits: list[float]) -> None:
    busy = [Wrong(429, headers={"Retry-After": seconds}) for seconds in ("3", "50")]
    with serving_vectors(_answering(*busy)) as service:
        VectorServer(service.url).embed(TEXTS)
    assert waits == [3.0, 10.0]


def test_a_refusal_is_not_asked_again_and_leaves_the_other_texts(waits: list[float]) -> None:
    def embed(texts: list[str]) -> Any:
        return Wrong(413, b"too long") if TEXTS[3] in texts else _answering()(texts)

    with serving_vectors(embed) as service:
        found, _ = VectorServer(service.url).embed(TEXTS)
    assert found.refused == {3: "413: too long"}
    assert found.places == (0, 1, 2, 4, 5, 6, 7, 8, 9)
    assert found.rows[:, 0].tolist() == list(found.places)
    assert [len(fields["input"]) for _, fields in service.requests] == [8, *[1] * 8, 2]
    assert waits == []


def test_an_answer_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_server, "_MOST_NUMBERS", 10)
    with (
        serving_vectors(lambda _: Wrong(body=b" " * 10_000)) as service,
        pytest.raises(DataError, match="its answer has more than"),
    ):
        VectorServer(service.url).embed(TEXTS)


def test_a_key_in_a_redirect_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    away = Wrong(302, headers={"Location": "/login?key=sk-very-secret"})
    with (
        serving_vectors(lambda _: away) as service,
        pytest.raises(EmbergeError, match="leads to /login") as caught,
    ):
        VectorServer(service.url, key="MY_KEY").embed(TEXTS)
    assert "secret" not in str(caught.value)
    assert len(service.requests) == 1


def test_sizes_that_differ_between_requests_are_refused() -> None:
    with (
        serving_vectors(lambda texts: [[1.0] * len(texts) for _ in texts]) as service,
        pytest.raises(DataError, match="its vectors have 2 to 8 numbers"),
    ):
        VectorServer(service.url).embed(TEXTS)


def test_no_answer_in_any_form_names_each_address() -> None:
    with (
        serving_vectors(_answering(), []) as service,
        pytest.raises(ServiceError) as caught,
    ):
        VectorServer(service.url).embed(TEXTS)
    for path in ("/v1/embeddings", "/embed", "/api/embed"):
        assert f"{service.url}{path}: the server answers 404" in str(caught.value)
