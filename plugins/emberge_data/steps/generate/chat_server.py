"""Servers with the interface of OpenAI's chat: the options of one, and requests to it.

Requests are sent by urllib: `InferenceClient` of huggingface_hub refuses a server of this machine where the
hub is switched off (HF_HUB_OFFLINE), and sends the hub's token to a server without a key.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from emberge import Count, EmbergeError
from emberge.wording import shorten

from emberge_data.steps.generate.model_reply import ModelReply, NoReplyError

_TRIES, _BUSY_TRIES = 5, 10
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0
_TEMPORARY = (408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529)
_TOO_MANY = 429  # requests in a minute
_REFUSED_KEY = (401, 403, 407)
_TIMEOUT, _ANSWER_BYTES = 120.0, 4 << 20
# Tokens of a reply.
MAX_TOKENS = 400
_KEY_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")
_KEY = re.compile(r"[!-~]{1,4096}")


class ServiceError(EmbergeError):
    """The error for a service that answers no request: it is not there, or refuses the key or the model."""


class _PassingError(Exception):
    """A failure after which a request is repeated when `wait` seconds have passed; it has `tries` in all."""

    def __init__(self, message: str, tries: int = _TRIES, wait: float = 0.0) -> None:
        super().__init__(message)
        self.tries, self.wait = tries, wait


@dataclass(frozen=True, kw_only=True)
class ChatServer:
    """A model behind a server with OpenAI's interface, asked with POST `endpoint/chat/completions`.

    `key` is the name of the environment variable that has the key; the key itself is only sent to the server.
    `requests_per_minute` and `parallel` limit the requests. A request waits at most two minutes for its
    answer, and is repeated after failures that may pass. `request` has further fields of each request, such
    as `{temperature: 0.3}`, where null removes a field.
    """

    endpoint: str
    model: str
    key: str | None = None
    requests_per_minute: Count | None = None
    parallel: Count = 4
    request: Mapping[str, object] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The address that requests are sent to."""
        return f"{self.endpoint.rstrip('/')}/chat/completions"

    @property
    def leaves_machine(self) -> bool:
        """True if requests leave this machine."""
        return urlsplit(self.url).hostname not in ("localhost", "127.0.0.1", "::1")

    @property
    def lacks_key(self) -> bool:
        """True if the environment has no key under the name of `key`."""
        return self.key is not None and not os.environ.get(self.key, "").strip()

    def list_faults(self) -> Iterator[tuple[str, str]]:
        """Yield (option, fault) of options that are wrong, without a request."""
        try:
            json.dumps(self.request, allow_nan=False)
        except (TypeError, ValueError) as error:
            yield "request", f"a field has a value that JSON does not have ({error})"
        if not self.url.startswith(("https://", "http://")) or not urlsplit(self.url).hostname:
            yield "endpoint", f"{self.url}: no address of a web server; write https://host/path"
        if "@" in self.url or "?" in self.url:
            yield "endpoint", "the address has a name or a query in it; give the key by `key`"
        if self.key is not None and not _KEY_NAME.fullmatch(self.key):
            yield (
                "key",
                "key is the name of an environment variable, such as OPENAI_API_KEY, never the key itself",
            )

    def read_key(self) -> str | None:
        """Return the key from the environment.

        Raises:
            ServiceError: if the variable is not set, or has what cannot be a key; never shows the value.
        """
        if self.key is None:
            return None
        if self.lacks_key:
            raise ServiceError(
                f"{self.url}: the environment variable {self.key} has no key; set it"
            )
        value = os.environ[self.key].strip()
        if not _KEY.fullmatch(value):
            raise ServiceError(
                f"{self.key}: its value is no key, as it has spaces or other characters; set it again"
            )
        return value

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
    """A client of a server, for any number of threads, which repeats requests and keeps to the rate.

    When `stop` is set, no request is sent or repeated any more.
    """

    def __init__(self, server: ChatServer) -> None:
        self.stop = threading.Event()
        self._server, self._key = server, server.read_key()
        self._gap = 60.0 / server.requests_per_minute if server.requests_per_minute else 0.0
        self._lock, self._next = threading.Lock(), 0.0

    def ask(self, prompt: str) -> ModelReply:
        """Return the server's reply to a prompt.

        Raises:
            ServiceError: if the server refuses the key, or is not there.
            NoReplyError: if this request gets no reply, also when it is repeated.
        """
        number = 0
        while True:
            self._wait(self._take_turn())
            try:
                return self._post(prompt)
            except _PassingError as error:
                number += 1
                if number >= error.tries:
                    raise NoReplyError(self._hide(f"{error} ({number} times)")) from None
                self._wait(max(error.wait, min(_FIRST_WAIT * 2.0 ** (number - 1), _LONGEST_WAIT)))

    def _take_turn(self) -> float:
        """Return the seconds until a request may begin; they are evenly spaced within a minute."""
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._next)
            self._next = begin + self._gap
        return begin - now

    def _wait(self, seconds: float) -> None:
        if self.stop.wait(seconds) if seconds > 0 else self.stop.is_set():
            raise NoReplyError("the work has ended")

    def _post(self, prompt: str) -> ModelReply:
        content = json.dumps(self._server.build_request(prompt)).encode()
        request = Request(self._server.url, content, {"Content-Type": "application/json"})
        if self._key is not None:
            request.add_unredirected_header("Authorization", f"Bearer {self._key}")
        try:
            with urlopen(request, timeout=_TIMEOUT) as answer:
                choice = json.loads(answer.read(_ANSWER_BYTES))["choices"][0]
            text = choice["message"]["content"] or ""
            reply = ModelReply(*map(_make_encodable, (text, choice.get("finish_reason") or "")))
        except HTTPError as error:
            with error:
                raise self._read_failure(error) from None
        except (URLError, TimeoutError) as error:
            if isinstance(getattr(error, "reason", error), TimeoutError):
                raise _PassingError(f"no answer within {_TIMEOUT:g} s", tries=2) from None
            raise ServiceError(f"{self._server.url}: no connection ({error})") from None
        except (OSError, HTTPException) as error:
            raise _PassingError(f"the connection broke ({error})") from None
        except (LookupError, TypeError, ValueError, AttributeError):
            raise _PassingError("the answer is no chat completion") from None
        if self._key is not None and self._key in reply.text:
            raise NoReplyError("the reply has the key in it")
        return reply

    def _read_failure(self, answer: HTTPError) -> Exception:
        """Return the error for an answer that is none."""
        if answer.code in _REFUSED_KEY:
            place = f"see to the key in {self._server.key}" if self._key else "give one by `key`"
            return ServiceError(
                f"{self._server.url}: the server refuses the key ({answer.code}); {place}"
            )
        quote = shorten(self._hide(answer.read(4000).decode("utf-8", "replace")), 200)
        message = f"the server answers {answer.code}" + (f": {quote}" if quote else "")
        if answer.code not in _TEMPORARY:
            return NoReplyError(message)
        wait = answer.headers.get("Retry-After", "")
        return _PassingError(
            message,
            _BUSY_TRIES if answer.code == _TOO_MANY else _TRIES,
            min(60.0, float(wait)) if wait.isdecimal() else 0.0,
        )

    def _hide(self, text: str) -> str:
        return text if self._key is None else text.replace(self._key, "…")


def _make_encodable(text: str) -> str:
    """Return a text without halves of surrogate pairs, which JSON can have and no file."""
    return text.encode("utf-8", "replace").decode()
