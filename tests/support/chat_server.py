"""A server on this machine with OpenAI's interface, which answers by rule and counts what it was asked."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.served import LocalHandler, LocalServer, served

KEY = "sk-" + "test" * 8


@dataclass(frozen=True)
class Wrong:
    """An answer that is no reply: its status, its bytes, and what is sent with it."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


def queries_by_rule(prompt: str) -> str:
    """Two queries that depend on the passage alone."""
    passage = prompt.partition("<<<")[2]
    mark = hashlib.sha256(passage.encode()).hexdigest()[:6]
    word = max(re.findall(r"[a-z]+", passage) or ["nothing"], key=len)
    return f"1. What needs the {word} of {mark}?\n2. {word} {mark} care"


class AnsweringHandler(LocalHandler):
    """A handler that sends whole answers, right or wrong."""

    protocol_version = "HTTP/1.0"

    def send_wrong(self, wrong: Wrong) -> None:
        time.sleep(wrong.seconds)
        self.send(wrong.status, wrong.body, wrong.headers)


class ChatService(LocalServer):
    """Answers each prompt by `rule`; `asked` has the prompts, and `keys` the keys that were sent."""

    def __init__(self, rule: Callable[[str], str | Wrong] = queries_by_rule) -> None:
        super().__init__(_Handler)
        self.rule = rule
        self.asked: list[str] = []
        self.requests: list[dict[str, Any]] = []
        self.keys: Counter[str] = Counter()
        self.at_once = self.most_at_once = 0

    @property
    def url(self) -> str:
        return f"{super().url}/v1"


class _Handler(AnsweringHandler):
    server: ChatService

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = request["messages"][0]["content"]
        with self.server.lock:
            self.server.asked.append(prompt)
            self.server.requests.append(request)
            self.server.keys[self.headers.get("Authorization", "")] += 1
            self.server.at_once += 1
            self.server.most_at_once = max(self.server.most_at_once, self.server.at_once)
        try:
            found = self.server.rule(prompt) if self.path == "/v1/chat/completions" else Wrong(404)
        finally:
            # Before the answer: whoever has it asks again at once.
            with self.server.lock:
                self.server.at_once -= 1
        self.send_wrong(found if isinstance(found, Wrong) else Wrong(body=completion(found)))


def completion(text: str, ended: str = "stop", **usage: int) -> bytes:
    """A chat completion as OpenAI's servers write it."""
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": ended}
    counts = {"prompt_tokens": 10, "completion_tokens": 5, **usage}
    return json.dumps({"choices": [choice], "usage": counts}).encode()


@contextmanager
def serving_chat(rule: Callable[[str], str | Wrong] = queries_by_rule) -> Iterator[ChatService]:
    with served(ChatService(rule)) as service:
        yield service
