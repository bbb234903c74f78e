"""Queries that a server writes: each reply is bought once, and whatever it answers has a defined result."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from emberge import DataRef, EmbergeError
from emberge.contracts import DataOrigin
from emberge.data import load_catalogue
from emberge_data.steps.generate import chat_server
from emberge_data.steps.generate.chat_server import ChatServer
from emberge_data.steps.generate.generate_step import GenerateQueries

from tests.support.bench import Bench
from tests.support.chat_server import (
    KEY,
    ChatService,
    Wrong,
    completion,
    queries_by_rule,
    serving_chat,
)
from tests.support.glance import Glance
from tests.support.handbook import write_handbook

PASSAGES = 12


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_server, "_FIRST_WAIT", 0.01)


@pytest.fixture
def handbook(tmp_path: Path) -> Path:
    """Four pages, twelve passages."""
    return write_handbook(tmp_path / "docs", documents=4)


def step(service: ChatService, documents: Path, **options: Any) -> GenerateQueries:
    server: dict[str, Any] = {"endpoint": service.url, "model": "m", **options.pop("server", {})}
    by = ChatServer(**server)
    return GenerateQueries(
        documents=DataRef(str(documents)), by=by, **{"dev": 0, "test": 0, **options}
    )


def run(made: GenerateQueries, root: Path, **bench: Any) -> Bench:
    workspace = Bench(root, id="generated", **bench)
    made.run(workspace)
    return workspace


def queries(bench: Bench) -> list[str]:
    lines = (bench.folder / "train.jsonl").read_text().splitlines()
    return [json.loads(line)["query"] for line in lines]


def notes(bench: Bench) -> dict[str, int]:
    changes: dict[str, Any] = json.loads((bench.folder / "changes.json").read_text())
    return dict(changes["train"]["notes"])


def test_each_passage_is_asked_about_once_and_its_lines_are_queries(
    tmp_path: Path, handbook: Path
) -> None:
    source = DataOrigin(licence="mit", written_by=("translator",))
    with serving_chat() as service:
        bench = run(step(service, handbook, source=source), tmp_path / "run")
        assert len(service.asked) == len(set(service.asked)) == PASSAGES
        assert service.requests[0]["model"] == "m"
    found = queries(bench)
    assert len(found) == 2 * PASSAGES
    assert all(
        re.fullmatch(r"What needs the \w+ of \w{6}\?|\w+ \w{6} care", query) for query in found
    )
    row = json.loads((bench.folder / "train.jsonl").read_text().splitlines()[0])
    assert row["pos"][0].startswith("Care of ")
    (listed,) = load_catalogue(bench.folder).train
    assert listed.source == replace(source, written_by=("translator", "m"))


def test_a_changed_request_is_another(tmp_path: Path, handbook: Path) -> None:
    with serving_chat() as service:
        run(step(service, handbook, limit=3), tmp_path / "run")
        run(step(service, handbook, limit=5), tmp_path / "run")
        assert len(service.asked) == 5
        run(step(service, handbook, limit=3, server={"model": "n"}), tmp_path / "run")
        assert len(service.asked) == 8


def test_the_key_is_sent_to_the_server_and_is_nowhere_else(
    tmp_path: Path, handbook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAT_KEY", KEY)
    with serving_chat() as service:
        made = step(service, handbook, server={"key": "CHAT_KEY"})
        glance = Glance()
        assert list(made.check(glance)) == []
        bench = run(made, tmp_path / "run")
        assert set(service.keys) == {f"Bearer {KEY}"}
    texts = [repr(made), repr(bench.told), repr(bench.warnings), repr(glance.notes)]
    texts += [file.read_text() for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert not [text for text in texts if KEY in text]


@pytest.mark.parametrize(("status", "said"), [(401, "CHAT_KEY"), (404, "the key was")])
def test_a_refusal_ends_the_step_and_shows_no_key(
    tmp_path: Path, handbook: Path, monkeypatch: pytest.MonkeyPatch, status: int, said: str
) -> None:
    monkeypatch.setenv("CHAT_KEY", KEY)
    wrong = Wrong(status, f"the key was {KEY}".encode())
    with serving_chat(lambda _: wrong) as service, pytest.raises(EmbergeError, match=said) as error:
        run(step(service, handbook, server={"key": "CHAT_KEY", "parallel": 1}), tmp_path / "run")
    assert len(service.asked) == 1
    assert KEY not in str(error.value)


@pytest.mark.parametrize("value", ["", "two words"])
def test_a_key_that_is_none_is_named_by_its_variable_before_any_request(
    tmp_path: Path, handbook: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("CHAT_KEY", value)
    with serving_chat() as service, pytest.raises(EmbergeError, match="CHAT_KEY") as error:
        run(step(service, handbook, server={"key": "CHAT_KEY"}), tmp_path / "run")
    assert service.asked == []
    assert not value.strip() or value not in str(error.value)


def then(*answers: str | Wrong) -> Callable[[str], str | Wrong]:
    """Answer with each of these in turn, then by rule."""
    left: Iterator[str | Wrong] = iter(answers)
    return lambda prompt: next(left, queries_by_rule(prompt))


@pytest.mark.parametrize(
    "wrong",
    [
        Wrong(429, headers={"Retry-After": "0"}),
        Wrong(503, b"busy"),
        Wrong(200, b"<html>a portal</html>"),
        Wrong(200, b'{"choices": []}'),
        Wrong(200, b"", {"Content-Length": "50"}),
    ],
)
def test_a_failure_that_may_pass_is_followed_by_the_same_request(
    tmp_path: Path, handbook: Path, wrong: Wrong
) -> None:
    with serving_chat(then(wrong, wrong)) as service:
        bench = run(step(service, handbook, limit=3), tmp_path / "run")
        assert len(service.asked) == 5
    assert len(queries(bench)) == 6


def test_a_server_that_is_too_slow_ends_the_step(
    tmp_path: Path, handbook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_server, "_TIMEOUT", 0.3)
    with serving_chat(lambda _: Wrong(seconds=1.0)) as service:
        with pytest.raises(EmbergeError, match=re.escape("within 0.3 s")):
            run(step(service, handbook, limit=2), tmp_path / "run")
        assert len(service.asked) == 2


def test_no_server_and_no_such_model_are_errors_at_once(tmp_path: Path, handbook: Path) -> None:
    with serving_chat() as service:
        made = step(service, handbook)
        with pytest.raises(EmbergeError, match=r"404.*model 'm'"):
            run(step(service, handbook, server={"endpoint": f"{service.url}/no"}), tmp_path / "run")
    with pytest.raises(EmbergeError, match="no connection"):
        run(made, tmp_path / "run")


def passage_of(prompt: str) -> str:
    return prompt.partition("<<<\n")[2].partition("\n>>>")[0]


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (lambda _: "", "no query in the reply"),
        (lambda _: "?!", "too short"),
        (passage_of, "quotes its passage"),
        (lambda _: "word " * 60, "too long"),
        (lambda _: "I'm sorry, I cannot help with that.", "a refusal"),
        (lambda _: "What does this document say about it?", "speaks of its passage"),
        (lambda _: Wrong(body=completion("What is the", "length")), "the reply is cut"),
        (lambda _: Wrong(400, b"content filter"), "no reply: the server answers 400"),
    ],
)
def test_a_reply_that_is_no_query_drops_its_passage_and_is_counted(
    tmp_path: Path, handbook: Path, reply: Callable[[str], str | Wrong], fault: str
) -> None:
    is_second = second_of_prompts()

    def rule(prompt: str) -> str | Wrong:
        return reply(prompt) if is_second(prompt) else queries_by_rule(prompt)

    with serving_chat(rule) as service:
        bench = run(step(service, handbook, server={"parallel": 1}), tmp_path / "run")
    assert len(queries(bench)) == 2 * (PASSAGES - 1)
    ((note, count),) = notes(bench).items()
    assert re.search(fault, note)
    assert count == 1


def second_of_prompts() -> Callable[[str], bool]:
    """Return a function that is true of the second prompt that it gets."""
    seen: list[str] = []

    def is_second(prompt: str) -> bool:
        seen.append(prompt)
        return len(seen) == 2

    return is_second


@pytest.mark.parametrize(
    "content",
    [
        '{"text": null, "ended": "stop"}',
        "{",
    ],
)
def test_a_kept_reply_that_is_damaged_is_asked_for_again(
    tmp_path: Path, handbook: Path, content: str
) -> None:
    with serving_chat() as service:
        made = step(service, handbook, limit=2)
        bench = run(made, tmp_path / "run")
        expected = (bench.folder / "train.jsonl").read_bytes()
        first, second = sorted(bench.store.glob("replies/*/*.json"))
        first.write_text(content)
        with second.open("r+b") as file:
            file.truncate(1 << 30)
        run(made, tmp_path / "run")
        assert len(service.asked) == 4
    assert (bench.folder / "train.jsonl").read_bytes() == expected


def test_a_server_that_stops_answering_ends_the_step_and_a_later_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_server, "_TRIES", 2)
    folder = write_handbook(tmp_path / "many", documents=10)
    asked: list[str] = []

    def rule(prompt: str) -> str | Wrong:
        asked.append(prompt)
        return queries_by_rule(prompt) if len(asked) <= 5 else Wrong(500, b"down")

    with serving_chat(rule) as service:
        made = step(service, folder, server={"parallel": 2})
        with pytest.raises(
            EmbergeError, match=r"no reply: the server answers 500: down \(2 times\)"
        ):
            run(made, tmp_path / "run")
        served = set(asked[:5])
        service.rule, service.asked = queries_by_rule, []
        bench = run(made, tmp_path / "run")
        assert not served & set(service.asked)
        assert len(service.asked) == 30 - 5
    assert len(queries(bench)) == 60


def test_without_a_key_that_of_the_hub_is_sent_nowhere(
    tmp_path: Path, handbook: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", KEY)
    with serving_chat() as service:
        run(step(service, handbook, limit=2), tmp_path / "run")
    assert set(service.keys) == {""}


def test_kinds_take_turns_over_the_passages(tmp_path: Path, handbook: Path) -> None:
    with serving_chat() as service:
        made = step(service, handbook, per_document=1, kinds=("keywords", "claim"))
        run(made, tmp_path / "run")
        asked = ["keywords" if "keywords" in prompt else "claim" for prompt in service.asked]
    assert min(asked.count("claim"), asked.count("keywords")) >= 3


@pytest.mark.parametrize(
    ("server", "option", "severity"),
    [
        ({"endpoint": "ftp://host/v1"}, "endpoint", "error"),
        ({"endpoint": "https://me:pw@host/v1"}, "endpoint", "error"),
        ({"key": "sk-abcdef"}, "key", "error"),
        ({"key": "CHAT_KEY"}, "key", "warning"),
    ],
)
def test_options_without_sense_or_that_would_give_a_key_away_are_found_by_the_check(
    handbook: Path,
    monkeypatch: pytest.MonkeyPatch,
    server: dict[str, Any],
    option: str,
    severity: str,
) -> None:
    monkeypatch.delenv("CHAT_KEY", raising=False)
    by = ChatServer(**{"endpoint": "https://example.com/v1", "model": "m", **server})
    made = GenerateQueries(documents=DataRef(str(handbook)), by=by)
    (problem,) = [p for p in made.check(Glance()) if p.severity == severity]
    assert problem.where == f"by.{option}"
    assert "sk-abcdef" not in problem.message


def test_documents_that_leave_the_machine_need_permission(handbook: Path) -> None:
    def uploads(endpoint: str) -> tuple[str, ...]:
        by = ChatServer(endpoint=endpoint, model="m")
        return tuple(GenerateQueries(documents=DataRef("x"), by=by).uploads_to())

    assert uploads("https://example.com/v1") == ("https://example.com/v1/chat/completions",)
    for own in ("http://localhost:1/v1", "http://127.0.0.1:1/v1", "http://[::1]:1/v1"):
        assert uploads(own) == ()
