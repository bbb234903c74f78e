"""Servers with the interface of OpenAI's chat: the options of one, and requests to it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from emberge import Count, EmbergeError, NonNegative
from emberge.network import UnsoundAnswerError, call_again

from emberge_data.steps.generate.json_posts import PostAnswer, post_json
from emberge_data.steps.generate.kept_replies import ModelReply
from emberge_data.steps.generate.web_service import BusyServiceError, WebService

_ANSWER_BYTES = 4 << 20
_TRIES, _SLOW_TRIES, _BUSY_TRIES = 5, 2, 10
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0
_TEMPORARY = (408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529)
_TOO_MANY = 429  # requests in a minute
_MILLION = 1_000_000
_TIMEOUT = 120.0
# Tokens of a reply.
MAX_TOKENS = 400


class NoReplyError(Exception):
    """The error for one request that gets no reply; others may get theirs."""


@dataclass(frozen=True, kw_only=True)
class TokenPrice:
    """The price of a million tokens, in any currency: `input` is read by the model, `output` written."""

    input: NonNegative
    output: NonNegative

    def of(self, tokens_read: int, tokens_written: int) -> float:
        """Return the price of so many tokens."""
        return (tokens_read * self.input + tokens_written * self.output) / _MILLION


@dataclass(frozen=True, kw_only=True)
class ChatServer:
    """A model behind a server with OpenAI's interface, asked with POST `endpoint/chat/completions`.

    `key` is the name of the environment variable that has the key; the key itself is only sent to the server.
    `requests_per_minute` and `parallel` limit the requests. A request waits at most two minutes for its
    answer, and is repeated after failures that may pass. `request` has further fields of each request, such
    as `{temperature: 0.3}`, where null removes a field. `price` is that of a million tokens.
    """

    endpoint: str
    model: str
    key: str | None = None
    requests_per_minute: Count | None = None
    parallel: Count = 4
    request: Mapping[str, object] = field(default_factory=dict)
    price: TokenPrice | None = None

    @property
    def url(self) -> str:
        """The address that requests are sent to."""
        return f"{self.endpoint.rstrip('/')}/chat/completions"

    @property
    def leaves_machine(self) -> bool:
        """True if requests leave this machine."""
        return urlsplit(self.url).hostname not in ("localhost", "127.0.0.1", "::1")

    @property
    def service(self) -> WebService:
        """The service at the address of requests, with the name of its key."""
        return WebService(self.url, self.key)

    def list_faults(self) -> Iterator[tuple[str, str]]:
        """Yield (option, fault) of options that are wrong, without a request."""
        try:
            json.dumps(self.request, allow_nan=False)
        except (TypeError, ValueError) as error:
            yield "request", f"a field has a value that JSON does not have ({error})"
        yield from self.service.list_faults()

    def build_request(self, prompt: str) -> dict[str, Any]:
        """Return the JSON of the request with a prompt."""
        fields = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": MAX_TOKENS,
            **self.request,
        }
        return {name: value for name, value in fields.items() if value is not None}

    def name_request(self, prompt: str) -> dict[str, Any]:
        """Return all that decides the reply to a prompt: address and request."""
        return {"url": self.url, "request": self.build_request(prompt)}


class ChatClient:
    """A client of a server, for any number of threads, which repeats requests and keeps to the rate."""

    def __init__(self, server: ChatServer, stop: threading.Event) -> None:
        self._server, self._stop = server, stop
        self._key = server.service.read_key()
        self._pace = _RequestPace(server.requests_per_minute)

    def ask(self, prompt: str) -> ModelReply:
        """Return the server's reply to a prompt.

        Raises:
            ServiceError: if the server refuses the key or the model, or is not there.
            NoReplyError: if this request gets no reply, also when it is repeated.
            RequestStoppedError: if the work has ended before the request was repeated.
        """
        content = json.dumps(self._server.build_request(prompt), ensure_ascii=False).encode(
            "utf-8", "replace"
        )

        def call() -> ModelReply:
            self._pace.wait(self._stop)
            answer = post_json(
                self._server.url,
                content,
                self._key.headers,
                seconds=_TIMEOUT,
                most=_ANSWER_BYTES,
            )
            return self._read_answer(answer)

        return call_again(self._server.url, call, self._wait_after, self._stop)

    def _wait_after(self, error: Exception, number: int) -> float:
        """Return the seconds to wait before a request is repeated; raise what ends it."""
        if isinstance(error, UnsoundAnswerError):
            raise NoReplyError(self._key.hide(str(error))) from None
        if not isinstance(error, BusyServiceError | OSError) or isinstance(error, EmbergeError):
            raise error
        tries = error.tries if isinstance(error, BusyServiceError) else _TRIES
        if number < (_SLOW_TRIES if isinstance(error, TimeoutError) else tries):
            asked = error.wait if isinstance(error, BusyServiceError) else 0.0
            return max(asked, min(_FIRST_WAIT * 2.0 ** (number - 1), _LONGEST_WAIT))
        raise NoReplyError(self._key.hide(f"{error} ({number} times)")) from None

    def _read_answer(self, answer: PostAnswer) -> ModelReply:
        status = answer.status
        self._key.require_accepted(answer)
        if status in _TEMPORARY:
            raise BusyServiceError(
                f"the server answers {status}{self._key.quote(answer)}",
                answer.wait,
                _BUSY_TRIES if status == _TOO_MANY else _TRIES,
            )
        if status != 200:
            raise NoReplyError(f"the server answers {status}{self._key.quote(answer)}")
        reply = _parse_reply(answer.body)
        if reply is None:
            raise BusyServiceError(
                f"the answer is no chat completion{self._key.quote(answer)}", 0.0, _TRIES
            )
        if self._key.is_in(reply.text):
            raise NoReplyError("the reply has the key in it")
        return reply


class _RequestPace:
    """The times at which requests may begin, evenly spaced within a minute."""

    def __init__(self, per_minute: int | None) -> None:
        self._gap = 0.0 if per_minute is None else 60.0 / per_minute
        self._lock = threading.Lock()
        self._next = 0.0

    def wait(self, stop: threading.Event) -> None:
        """Wait until the next request may begin; raise NoReplyError if the work has ended before."""
        if not self._gap:
            return
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._next)
            self._next = begin + self._gap
        if begin > now and stop.wait(begin - now):
            raise NoReplyError("the work has ended")


def _parse_reply(body: bytes) -> ModelReply | None:
    """Return the reply of a chat completion; None if the answer is none."""
    try:
        answer = json.loads(body.decode("utf-8"))
        choice = answer["choices"][0]
        content = choice["message"]["content"]
        ended = str(choice.get("finish_reason") or "")[:40]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(content, str | None):
        return None
    # Half of a surrogate pair, which JSON can have, cannot be written.
    return ModelReply(_make_encodable(content or ""), _make_encodable(ended))


def _make_encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
