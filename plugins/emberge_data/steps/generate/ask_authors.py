"""Replies to many prompts, in order: those that are kept, and others that are asked for and then kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from emberge import EmbergeError, Workspace
from emberge.network import request_threads
from emberge.wording import count_noun

from emberge_data.steps.generate.chat_server import (
    ChatClient,
    ChatServer,
    NoReplyError,
    TokenPrice,
)
from emberge_data.steps.generate.kept_replies import KeptReplies, ModelReply
from emberge_data.steps.generate.local_author import MAX_TOKENS, PROMPTS_AT_ONCE, LocalAuthor
from emberge_data.steps.generate.web_service import ServiceError

_MOST_FAILED = 8
"""Requests in a row without a reply after which a server is not asked any more."""
_AHEAD = 4
"""Requests that wait for each one that is sent."""
_BYTES_PER_TOKEN = 4
"""Bytes of UTF-8 of a token, about: letters of English, and a little more than one Chinese character."""

Answer = ModelReply | str
"""A reply, or why there is none."""


@dataclass(frozen=True, slots=True)
class RequestEstimate:
    """The number of requests to an author, and about how many tokens they read and write."""

    requests: int
    tokens_read: int
    tokens_written: int

    @classmethod
    def of(cls, prompts: Sequence[str], tokens_written: int) -> RequestEstimate:
        """Return the estimate for prompts whose replies have so many tokens each."""
        tokens_read = sum(len(prompt.encode("utf-8", "replace")) for prompt in prompts)
        return cls(len(prompts), tokens_read // _BYTES_PER_TOKEN, tokens_written * len(prompts))

    def scaled(self, factor: float) -> RequestEstimate:
        """Return the estimate for `factor` times as many requests."""
        return RequestEstimate(
            round(self.requests * factor),
            round(self.tokens_read * factor),
            round(self.tokens_written * factor),
        )

    def describe(self, price: TokenPrice | None) -> str:
        """Return the estimate in words, with the price if one is given."""
        text = (
            f"{count_noun(self.requests, 'request')}, about {self.tokens_read:,} tokens to read and "
            f"{self.tokens_written:,} to write"
        )
        cost = (
            ""
            if price is None
            else f", price {price.of(self.tokens_read, self.tokens_written):.2f}"
        )
        return text + cost


def ask_author(
    author: ChatServer | LocalAuthor,
    prompts: Sequence[str],
    workspace: Workspace,
    *,
    tokens_written: int,
    noun: str,
) -> Generator[Answer]:
    """Yield the author's answer to each prompt, in order.

    Replies are kept in the store of the run. A caller that stops early loses no reply that was asked for.

    Raises:
        ServiceError: if a server refuses the key or the model, is not there, or answers nothing.
    """
    kept = KeptReplies(workspace.store / "replies")
    keys = _name_requests(author, prompts, workspace, kept)
    missing = [place for place, key in enumerate(keys) if kept.read(key) is None]
    estimate = RequestEstimate.of([prompts[place] for place in missing], tokens_written)
    price = author.price if isinstance(author, ChatServer) else None
    told = f"{noun}: {estimate.describe(price)}"

    def progress(done: int) -> None:
        workspace.progress(done, len(prompts), "requests", told)

    progress(0)
    requests = _Requests(prompts, keys, missing, kept, progress)
    if not missing:
        yield from map(requests.read, range(len(prompts)))
    elif isinstance(author, ChatServer):
        yield from _ask_server(author, requests)
    else:
        yield from _ask_model(author, requests, workspace)


@dataclass(frozen=True)
class _Requests:
    """All prompts with the keys of their replies, and the places of those without a kept reply."""

    prompts: Sequence[str]
    keys: Sequence[str]
    missing: Sequence[int]
    kept: KeptReplies
    progress: Callable[[int], None]

    def read(self, place: int) -> ModelReply:
        """Return the kept reply of a prompt."""
        reply = self.kept.read(self.keys[place])
        assert reply is not None, "it was kept before it is read"
        return reply


def _name_requests(
    author: ChatServer | LocalAuthor,
    prompts: Sequence[str],
    workspace: Workspace,
    kept: KeptReplies,
) -> list[str]:
    if isinstance(author, ChatServer):
        return [kept.key(author.name_request(prompt)) for prompt in prompts]
    fingerprint = workspace.model(author.model).fingerprint
    facts = {"model": fingerprint, "max_tokens": MAX_TOKENS}
    return [kept.key({**facts, "prompt": prompt}) for prompt in prompts]


# ── servers ─────────────────────────────────────────────────────────────────────────────────────────


def _ask_server(server: ChatServer, requests: _Requests) -> Iterator[Answer]:
    """Yield all answers; the first request goes alone, so a refused key is found by one request."""
    with request_threads(server.parallel) as (threads, stop):
        client = ChatClient(server, stop)

        def ask(place: int) -> Answer:
            try:
                reply = client.ask(requests.prompts[place])
            except NoReplyError as error:
                return str(error)
            requests.kept.write(requests.keys[place], reply)
            return reply

        first = ask(requests.missing[0])
        if isinstance(first, str):
            raise ServiceError(
                f"{server.url}: the first request got no reply: {first}; see to endpoint and model "
                f"'{server.model}'"
            )
        yield from _collect(server, requests, threads, ask)


def _collect(
    server: ChatServer,
    requests: _Requests,
    threads: ThreadPoolExecutor,
    ask: Callable[[int], Answer],
) -> Iterator[Answer]:
    """Yield all answers in order, while those of the next prompts are asked for."""
    left = deque(requests.missing[1:])
    asked: dict[int, Future[Answer]] = {}
    failed = 0
    try:
        for place in range(len(requests.prompts)):
            while left and len(asked) < _AHEAD * server.parallel:
                ahead = left.popleft()
                asked[ahead] = threads.submit(ask, ahead)
            future = asked.pop(place, None)
            answer = requests.read(place) if future is None else future.result()
            failed = failed + 1 if isinstance(answer, str) else 0 if future is not None else failed
            if failed >= _MOST_FAILED:
                raise ServiceError(
                    f"{server.url}: {failed} requests in a row got no reply ({answer}); all replies before "
                    "are kept, so see to the server and run again"
                )
            requests.progress(place + 1)
            yield answer
    except (GeneratorExit, EmbergeError):
        for future in asked.values():
            future.cancel()
        wait(asked.values())  # replies to requests that were sent are kept
        raise


# ── models of this machine ──────────────────────────────────────────────────────────────────────────


def _ask_model(
    author: LocalAuthor, requests: _Requests, workspace: Workspace
) -> Iterator[ModelReply]:
    """Yield all replies, written in batches."""
    left = deque(requests.missing)
    with author.opened(workspace) as model:
        for place in range(len(requests.prompts)):
            if left and left[0] == place:
                batch = [left.popleft() for _ in range(min(PROMPTS_AT_ONCE, len(left)))]
                replies = model.write([requests.prompts[one] for one in batch])
                for one, reply in zip(batch, replies, strict=True):
                    requests.kept.write(requests.keys[one], reply)
            requests.progress(place + 1)
            yield requests.read(place)
