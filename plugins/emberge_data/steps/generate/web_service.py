"""Web services that may want a key: checks of address and key, and messages that never show the key."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from emberge import EmbergeError
from emberge.wording import shorten

from emberge_data.steps.generate.json_posts import PostAnswer

_KEY_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")
_KEY = re.compile(r"[!-~]{1,4096}")
_REFUSED_KEY = (401, 403, 407)


class ServiceError(EmbergeError):
    """The error for a service that answers no request: it is not there, or refuses the key or the model."""


class BusyServiceError(Exception):
    """A failure after which a request is repeated when `wait` seconds have passed; it has `tries` in all."""

    def __init__(self, message: str, wait: float, tries: int) -> None:
        super().__init__(message)
        self.wait, self.tries = wait, tries


@dataclass(frozen=True)
class WebService:
    """A service at an address, and the name of the environment variable that has its key, if it wants one."""

    url: str
    key: str | None = None

    def list_faults(self) -> Iterator[tuple[str, str]]:
        """Yield (`endpoint` or `key`, fault) of an address or a name that is wrong, without a request."""
        if not self.url.startswith(("https://", "http://")) or not urlsplit(self.url).hostname:
            yield "endpoint", f"{self.url}: no address of a web server; write https://host/path"
        if "@" in self.url or "?" in self.url:
            yield "endpoint", "the address has a name or a query in it; give the key by `key`"
        if self.key is not None and not _KEY_NAME.fullmatch(self.key):
            yield (
                "key",
                "key is the name of an environment variable, such as OPENAI_API_KEY, never the key itself",
            )

    @property
    def lacks_key(self) -> bool:
        """True if the environment has no key under this name."""
        return self.key is not None and not os.environ.get(self.key, "").strip()

    def read_key(self) -> ServiceKey:
        """Return the key from the environment.

        Raises:
            ServiceError: if the variable is not set, or has what cannot be a key; never shows the value.
        """
        if self.key is None:
            return ServiceKey(self, None)
        value = os.environ.get(self.key, "").strip()
        if not value:
            raise ServiceError(
                f"{self.url}: the environment variable {self.key} has no key; set it"
            )
        if not _KEY.fullmatch(value):
            raise ServiceError(
                f"{self.key}: its value is no key, as it has spaces or other characters; set it again"
            )
        return ServiceKey(self, value)


@dataclass(frozen=True, repr=False)
class ServiceKey:
    """The key of a service, None if it wants none, which is sent to it and hidden in all messages."""

    service: WebService
    value: str | None

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a request that send the key."""
        return {} if self.value is None else {"Authorization": f"Bearer {self.value}"}

    def require_accepted(self, answer: PostAnswer) -> None:
        """Refuse an answer by which the service refuses the key; its text may show it.

        Raises:
            ServiceError: if it does.
        """
        if answer.status not in _REFUSED_KEY:
            return
        name = self.service.key
        place = f"see to the key in {name}" if self.value else "give one by `key`"
        raise ServiceError(
            f"{self.service.url}: the server refuses the key ({answer.status}); {place}"
        )

    def is_in(self, text: str) -> bool:
        """Return whether a text contains the key."""
        return self.value is not None and self.value in text

    def hide(self, text: str) -> str:
        """Return a text without the key, also where it stands as Python or JSON write it."""
        if self.value is not None:
            for written in (self.value, repr(self.value)[1:-1], json.dumps(self.value)[1:-1]):
                text = text.replace(written, "…")
        return text

    def quote(self, answer: PostAnswer) -> str:
        """Return `: ` and the beginning of an answer's text for a message, without the key; "" if empty."""
        text = shorten(self.hide(answer.body[:4000].decode("utf-8", "replace")), 200)
        return f": {text}" if text else ""
