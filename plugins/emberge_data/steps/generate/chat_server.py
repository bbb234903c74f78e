"""Servers with the interface of OpenAI's chat: the options of one, requests to it, and its kept replies.

Requests are sent by urllib: `InferenceClient` of huggingface_hub refuses a server of this machine where the
hub is switched off (HF_HUB_OFFLINE), and sends the hub's token to a server without a key.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from emberge import Count, EmbergeError
from emberge.files import UnsoundFileError, make_folder, read_json, write_json
from emberge.hashes import stable_hash
from emberge.wording import shorten

_TRIES = 6
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0  # seconds before a request is repeated
# Answers besides those of 500 and above after which a request is repeated; 429 is "too many requests".
_TEMPORARY = (408, 409, 425, 429)
_REFUSED = (401, 403, 404, 407)
_TIMEOUT, _ANSWER_BYTES = 120.0, 4 << 20
_KEY_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")
_KEY = re.compile(r"[!-~]{1,4096}")


class ServiceError(EmbergeError):
    """The error for a service that answers no request: it is not there, or refuses the key or the model."""


class NoReplyError(Exception):
    """The error for one request that gets no reply; others may get theirs.

    If the failure may pass, `wait` is the number of seconds after which the request is repeated at the
    earliest.
    """

    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A reply: its text, and why it ended (`stop`, `length`), "" if unknown."""

    text: str
    ended: str = ""


@dataclass(frozen=True, kw_only=True)
class ChatServer:
    """A model behind a server with OpenAI's interface, asked with POST `endpoint/chat/completions`.

    `key` is the name of the environment variable that has the key; the key itself is only sent to the server.
    `parallel` is the number of requests at a time. A request waits at most two minutes for its answer, and is
    repeated after failures that may pass.
    """

    endpoint: str
    model: str
    key: str | None = None
    parallel: Count = 4

    @property
    def url(self) -> str:
        """The address that requests are sent to."""
        return f"{self.endpoint.rstrip('/')}/chat/completions"

    @property
    def leaves_machine(self) -> bool:
        """True if requests leave this machine."""
        return urlsplit(self.url).hostname not in ("localhost", "127.0.0.1", "::1")

    def list_faults(self) -> Iterator[tuple[str, str]]:
        """Yield (option, fault) of options that are wrong, without a request."""
        if not self.url.startswith(("https://", "http://")) or not urlsplit(self.url).hostname:
            yield "endpoint", f"{self.url}: no address of a web server; write https://host/path"
        if "@" in self.url or "?" in self.url:
            yield "endpoint", "the address has a name or a query in it; give the key by `key`"
        if self.key is not None and not _KEY_NAME.fullmatch(self.key):
            message = "key is the name of an environment variable, such as OPENAI_API_KEY"
            yield "key", f"{message}, never the key itself"

    def read_key(self) -> str | None:
        """Return the key from the environment.

        Raises:
            ServiceError: if the variable is not set, or has what cannot be a key; never shows the value.
        """
        if self.key is None:
            return None
        value = os.environ.get(self.key, "").strip()
        if not _KEY.fullmatch(value):
            raise ServiceError(
                f"{self.url}: the environment variable {self.key} has no key, or one with spaces or other "
                "characters; set it"
            )
        return value

    def build_request(self, prompt: str) -> dict[str, Any]:
        """Return the JSON of the request with a prompt."""
        return {"model": self.model, "messages": [{"role": "user", "content": prompt}]}

    def reply_key(self, prompt: str) -> str:
        """Return the key of the reply to a prompt: a hash of the address and the request."""
        return stable_hash({"url": self.url, "request": self.build_request(prompt)})


class ChatClient:
    """A client of a server, for any number of threads, which keeps replies in `folder`.

    When `stop` is set, no request is sent or repeated any more.
    """

    def __init__(self, server: ChatServer, folder: Path) -> None:
        self.stop = threading.Event()
        self._server, self._key, self._folder = server, server.read_key(), folder

    def read_kept(self, prompt: str) -> ModelReply | None:
        """Return the kept reply to a prompt; None if there is none, or its file is damaged."""
        try:
            reply = ModelReply(**read_json(self._locate(prompt), limit=_ANSWER_BYTES))
        except (OSError, UnsoundFileError, ValueError, TypeError):
            return None
        is_text = isinstance(reply.text, str) and isinstance(reply.ended, str)
        return reply if is_text else None

    def ask(self, prompt: str) -> ModelReply:
        """Return the kept reply to a prompt, or else the server's reply, which is kept.

        Raises:
            ServiceError: if the server refuses the key or the model, or is not there.
            NoReplyError: if this request gets no reply, also when it is repeated.
        """
        reply = self.read_kept(prompt)
        if reply is None:
            reply = self._ask_server(prompt)
            path = self._locate(prompt)
            make_folder(path.parent)
            write_json(path, asdict(reply))
        return reply

    def _locate(self, prompt: str) -> Path:
        key = self._server.reply_key(prompt)
        return self._folder / key[:2] / f"{key}.json"

    def _ask_server(self, prompt: str) -> ModelReply:
        wait, message = 0.0, ""
        for number in range(_TRIES):
            if self.stop.wait(wait):
                raise NoReplyError("the work has ended")
            try:
                return self._post(prompt)
            except NoReplyError as error:
                if error.wait is None:
                    raise
                message = str(error)
                wait = max(error.wait, min(_FIRST_WAIT * 2.0**number, _LONGEST_WAIT))
        raise NoReplyError(f"{message} ({_TRIES} times)")

    def _post(self, prompt: str) -> ModelReply:
        content = json.dumps(self._server.build_request(prompt)).encode()
        request = Request(self._server.url, content, {"Content-Type": "application/json"})
        if self._key is not None:
            request.add_unredirected_header("Authorization", f"Bearer {self._key}")
        try:
            with urlopen(request, timeout=_TIMEOUT) as answer:
                choice = json.loads(answer.read(_ANSWER_BYTES))["choices"][0]
            texts = (choice["message"]["content"] or "", choice.get("finish_reason") or "")
            # JSON can have halves of surrogate pairs, and no file.
            return ModelReply(*(text.encode("utf-8", "replace").decode() for text in texts))
        except HTTPError as error:
            with error:
                raise self._read_failure(error) from None
        except (URLError, TimeoutError) as error:
            if isinstance(getattr(error, "reason", error), TimeoutError):
                raise NoReplyError(f"no answer within {_TIMEOUT:g} s") from None
            raise ServiceError(f"{self._server.url}: no connection ({error})") from None
        except (OSError, HTTPException) as error:
            raise NoReplyError(f"the connection broke ({error})", wait=0) from None
        except (LookupError, TypeError, ValueError, AttributeError):
            raise NoReplyError("the answer is no chat completion", wait=0) from None

    def _read_failure(self, answer: HTTPError) -> Exception:
        """Return the error for an answer that is none; it never shows the key."""
        quote = answer.read(4000).decode("utf-8", "replace")
        quote = shorten(quote if self._key is None else quote.replace(self._key, "…"), 200)
        message = f"the server answers {answer.code}" + (f": {quote}" if quote else "")
        if answer.code in _REFUSED:
            return ServiceError(
                f"{self._server.url}: {message}; see to endpoint, key ({self._server.key or 'none'}) and "
                f"model '{self._server.model}'"
            )
        if answer.code not in _TEMPORARY and answer.code < 500:
            return NoReplyError(message)
        wait = answer.headers.get("Retry-After", "")
        return NoReplyError(message, min(60.0, float(wait)) if wait.isdecimal() else 0.0)
