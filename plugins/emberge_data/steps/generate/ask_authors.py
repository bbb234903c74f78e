"""Replies to many prompts, in order: those that are kept, and others that are asked for and then kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from emberge import Workspace

from emberge_data.steps.generate.chat_server import ChatClient, ChatServer, ServiceError
from emberge_data.steps.generate.local_author import MAX_TOKENS, PROMPTS_AT_ONCE, LocalAuthor
from emberge_data.steps.generate.model_reply import KeptReplies, ModelReply, NoReplyError

_MOST_FAILED = 8
"""Requests in a row without a reply after which a server is not asked any more."""

Answer = ModelReply | str
"""A reply, or why there is none."""


@dataclass(frozen=True)
class _Requests:
    """All prompts with the keys of their replies, and the places of those without a kept reply."""

    prompts: Sequence[str]
    keys: Sequence[str]
    missing: Sequence[int]
    kept: KeptReplies
    show_progress: Callable[[int], None]

    def read(self, place: int) -> ModelReply:
        """Return the kept reply of a prompt."""
        reply = self.kept.read(self.keys[place])
        assert reply is not None, "it was kept before it is read"
        return reply


def ask_author(
    author: ChatServer | LocalAuthor, prompts: Sequence[str], workspace: Workspace
) -> Generator[Answer]:
    """Yield the author's answer to each prompt, in order.

    Replies are kept in the store of the run. A caller that stops early loses no reply that was asked for.

    Raises:
        ServiceError: if a server refuses the key or the model, is not there, or answers nothing.
    """
    kept = KeptReplies(workspace.store / "replies")
    if isinstance(author, ChatServer):
        keys = [kept.key(author.name_request(prompt)) for prompt in prompts]
    else:
        facts = {"model": workspace.model(author.model).fingerprint, "max_tokens": MAX_TOKENS}
        keys = [kept.key({**facts, "prompt": prompt}) for prompt in prompts]
    missing = [place for place, key in enumerate(keys) if kept.read(key) is None]
    note = f"{len(missing):,} of them to be sent"
    requests = _Requests(
        prompts,
        keys,
        missing,
        kept,
        lambda done: workspace.progress(done, len(prompts), "requests", note),
    )
    requests.show_progress(0)
    if not missing:
        yield from map(requests.read, range(len(prompts)))
    elif isinstance(author, ChatServer):
        yield from _ask_server(author, requests)
    else:
        yield from _ask_model(author, requests, workspace)


def _ask_server(server: ChatServer, requests: _Requests) -> Iterator[Answer]:
    """Yield all answers; the first request goes alone, so a refused key is found by one request."""
    client = ChatClient(server)

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
    threads = ThreadPoolExecutor(server.parallel)
    failed = 0
    try:
        futures = {place: threads.submit(ask, place) for place in requests.missing[1:]}
        for place in range(len(requests.prompts)):
            future = futures.pop(place, None)
            answer = requests.read(place) if future is None else future.result()
            failed = failed + 1 if isinstance(answer, str) else 0 if future is not None else failed
            if failed >= _MOST_FAILED:
                raise ServiceError(
                    f"{server.url}: {failed} requests in a row got no reply ({answer}); all replies before "
                    "are kept, so see to the server and run again"
                )
            requests.show_progress(place + 1)
            yield answer
    finally:
        client.stop.set()
        threads.shutdown(cancel_futures=True)  # replies to requests that were sent are kept


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
            requests.show_progress(place + 1)
            yield requests.read(place)
