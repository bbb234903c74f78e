"""Servers of embeddings: requests in the forms of OpenAI, Text Embeddings Inference and Ollama."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from emberge import CheckpointError, DataError, EmbergeError, RecipeError
from emberge.network import (
    BusyServiceError,
    PostAnswer,
    ServiceError,
    UnreachableError,
    WebService,
    call_again,
    post_json,
)
from emberge.wording import count_noun, printable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ServerForm = Literal["openai", "tei", "ollama"]
_PATHS: Mapping[ServerForm, str] = {
    "openai": "/v1/embeddings",
    "tei": "/embed",
    "ollama": "/api/embed",
}
# Texts of a request, the most numbers of a vector, and the most characters of a number in JSON.
_BATCH, _MOST_NUMBERS, _NUMBER_BYTES = 8, 1 << 16, 40
_TEMPORARY = (408, 425, 429, 500, 502, 503, 504)
_NOT_THERE = (404, 405, 501)
_TRIES, _FIRST_WAIT, _LONGEST_WAIT = 3, 0.5, 10.0


@dataclass(frozen=True, eq=False)
class ServedVectors:
    """Vectors [n, k] of texts as a server gave them, float64, and by place the texts that it refused."""

    rows: NDArray[np.float64]
    places: tuple[int, ...]
    refused: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class VectorServer:
    """A server that embeds texts, at an address that is whole or without its path.

    Without a `form` the address' path decides, or the first of the three forms that the server answers.
    `model` is the name that requests have. `key` is the name of the environment variable with the key. A
    request waits at most `timeout` seconds for its answer.

    Raises:
        RecipeError: if the address or the name of the key is malformed.
    """

    endpoint: str
    model: str = ""
    form: ServerForm | None = None
    key: str | None = None
    timeout: float = 30.0

    def __post_init__(self) -> None:
        for _, fault in self.service_at(self.endpoint).list_faults():
            raise RecipeError(f"--endpoint: {fault}")

    def service_at(self, url: str) -> WebService:
        """Return the service at one of the server's addresses."""
        return WebService(url, self.key, "--key")

    def list_places(self) -> list[tuple[ServerForm, str]]:
        """Return the forms to try, each with its address."""
        address = self.endpoint.rstrip("/")
        path = urlsplit(address).path
        if path.endswith("/v1"):
            return [("openai", f"{address}/embeddings")]
        for form, suffix in (*_PATHS.items(), ("openai", "/embeddings")):
            # Ollama's path ends like that of Text Embeddings Inference.
            if path.endswith(suffix) and not (form == "tei" and path.endswith(_PATHS["ollama"])):
                return [(self.form or form, address)]
        forms: Sequence[ServerForm] = (self.form,) if self.form else tuple(_PATHS)
        return [(form, f"{address}{_PATHS[form]}") for form in forms]

    def embed(self, texts: Sequence[str]) -> tuple[ServedVectors, str]:
        """Return the vectors of texts, and the address that gave them.

        A text that the server refuses by itself, as too long, is left out and named.

        Raises:
            ServiceError: if the server is not there in any form, refuses the key, or answers nothing.
            DataError: if it answers with what are no vectors of these texts.
        """
        answers = []
        for form, url in self.list_places():
            try:
                return _VectorClient(self, form, url).embed(texts), url
            except _NoSuchFormError as error:
                answers.append(f"{url}: {error}")
        raise ServiceError(
            "\n".join(
                [*answers, "name the whole address, the form by --api, or the model by --served-as"]
            )
        )


class _NoSuchFormError(Exception):
    """The server has nothing at this path."""


class _RefusedError(Exception):
    """The server refuses the texts of a request."""


class _VectorClient:
    """Requests to one address in one form."""

    def __init__(self, server: VectorServer, form: ServerForm, url: str) -> None:
        self._server, self._form, self._url = server, form, url
        self._key = server.service_at(url).read_key()

    def embed(self, texts: Sequence[str]) -> ServedVectors:
        import numpy as np

        rows: dict[int, list[float]] = {}
        refused: dict[int, str] = {}
        for start in range(0, len(texts), _BATCH):
            batch = range(start, min(start + _BATCH, len(texts)))
            try:
                rows |= dict(zip(batch, self._ask([texts[i] for i in batch]), strict=True))
                continue
            except _RefusedError as error:
                if len(batch) == 1:
                    refused[start] = str(error)
                    continue
            for place in batch:  # one of them may be too long
                try:
                    (rows[place],) = self._ask([texts[place]])
                except _RefusedError as error:
                    refused[place] = str(error)
        if not rows:
            raise ServiceError(f"{self._url}: refuses every text: {next(iter(refused.values()))}")
        widths = sorted({len(row) for row in rows.values()})
        if len(widths) > 1:
            raise DataError(
                f"{self._url}: its vectors have {widths[0]:,} to {widths[-1]:,} numbers; a server of "
                "embeddings has one size for all texts"
            )
        places = sorted(rows)
        return ServedVectors(
            np.array([rows[place] for place in places], np.float64), tuple(places), refused
        )

    def _ask(self, texts: Sequence[str]) -> list[list[float]]:
        fields_by_form: dict[ServerForm, dict[str, Any]] = {
            "openai": {"input": texts, "encoding_format": "float", "model": self._server.model},
            "tei": {"inputs": texts, "truncate": True},
            "ollama": {"input": texts, "model": self._server.model},
        }
        content = json.dumps(fields_by_form[self._form], ensure_ascii=False).encode(
            "utf-8", "replace"
        )

        def call() -> list[list[float]]:
            answer = post_json(
                self._url,
                content,
                self._key.headers,
                seconds=self._server.timeout,
                most=len(texts) * _MOST_NUMBERS * _NUMBER_BYTES,
            )
            return self._read(answer, len(texts))

        return call_again(self._url, call, self._wait_after)

    def _wait_after(self, error: Exception, number: int) -> float:
        """Return the seconds to wait before a request is repeated; raise what ends it."""
        if isinstance(error, UnreachableError):
            raise ServiceError(self._key.hide(str(error))) from None
        if isinstance(error, CheckpointError):  # too long, or a redirect, which may show the key
            raise DataError(self._key.hide(str(error))) from None
        if not isinstance(error, BusyServiceError | OSError) or isinstance(error, EmbergeError):
            raise error
        if isinstance(error, TimeoutError):
            raise ServiceError(
                f"{self._url}: no answer in {self._server.timeout:g} s; wait longer by --timeout"
            ) from None
        if number == _TRIES:
            raise ServiceError(self._key.hide(f"{self._url}: {error} ({number} times)")) from None
        asked = error.wait if isinstance(error, BusyServiceError) else 0.0
        return max(min(asked, _LONGEST_WAIT), _FIRST_WAIT * 2.0 ** (number - 1))

    def _read(self, answer: PostAnswer, count: int) -> list[list[float]]:
        status, words = answer.status, self._key.quote(answer)
        self._key.require_accepted(answer)
        if status in _NOT_THERE:
            raise _NoSuchFormError(f"the server answers {status}{words}")
        if status in _TEMPORARY:
            raise BusyServiceError(f"the server answers {status}{words}", answer.wait, _TRIES)
        if status != 200:
            raise _RefusedError(f"{status}{words}")
        try:
            vectors = [*_list_vectors(self._form, json.loads(answer.body.decode("utf-8")))]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise DataError(f"{self._url}: its answer is no list of vectors{words}") from None
        if len(vectors) != count:
            raise DataError(
                f"{self._url}: answers {count_noun(count, 'text')} by {count_noun(len(vectors), 'vector')}"
            )
        for vector in vectors:
            self._require_numbers(vector)
        return vectors

    def _require_numbers(self, vector: Any) -> None:
        if not isinstance(vector, list) or not 1 <= len(vector) <= _MOST_NUMBERS:
            raise DataError(
                f"{self._url}: a vector of its answer is {self._show(vector)}, no list of numbers"
            )
        for one in vector:
            if type(one) not in (int, float):
                raise DataError(
                    f"{self._url}: a vector has {self._show(one)} among its numbers; a server of embeddings "
                    "gives plain JSON numbers"
                )
            if not _is_finite(one):
                raise DataError(
                    f"{self._url}: a vector has {self._show(one)} among its numbers; the server's model or "
                    "its precision is unsound"
                )

    def _show(self, value: Any) -> str:
        return printable(self._key.hide(repr(value)), 60)


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer of hundreds of digits
        return False


def _list_vectors(form: ServerForm, answer: Any) -> Iterator[Any]:
    """Yield the vectors of an answer in the order of texts."""
    entries = answer
    if form != "tei":
        entries = answer["embeddings" if form == "ollama" else "data"]
    if not isinstance(entries, list):
        raise TypeError
    if form != "openai":
        yield from entries
        return
    numbers = [entry.get("index", place) for place, entry in enumerate(entries)]
    if sorted(numbers) != list(range(len(entries))):
        raise ValueError
    by_number = dict(zip(numbers, entries, strict=True))
    yield from (by_number[number]["embedding"] for number in range(len(entries)))
