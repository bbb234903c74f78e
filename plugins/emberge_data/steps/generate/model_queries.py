"""Queries that a model behind a server writes for passages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from emberge import DataError, Workspace, even_place
from emberge.wording import shorten

from emberge_data.documents.cutting import TextPassage
from emberge_data.steps.generate.chat_server import (
    ChatClient,
    ChatServer,
    ModelReply,
    NoReplyError,
    ServiceError,
)
from emberge_data.steps.generate.prompts import (
    NO_QUERY,
    ModelKind,
    ask_for_queries,
    find_query_fault,
    read_queries,
)
from emberge_data.steps.generate.written_query import WrittenQuery, drop_repeated

# Largest share of a server's replies that may be of no use, and replies after which it is first looked at.
_MOST_BAD = 0.5
_PROBATION = 20

Answer = ModelReply | str
"""A reply, or why there is none."""


def write_by_model(
    server: ChatServer,
    passages: Sequence[TextPassage],
    places: Sequence[int],
    kinds: Sequence[ModelKind],
    most: int,
    workspace: Workspace,
) -> list[WrittenQuery]:
    """Return the queries that a model writes for the passages at `places`, `most` for each.

    Texts that are no query of their passage have a fault.

    Raises:
        DataError: if more than the share _MOST_BAD of the replies has no query.
        ServiceError: if the server refuses the key or the model, or is not there.
    """
    turns = [take_turns(kinds, passages[place], most) for place in places]
    prompts = [
        ask_for_queries(passages[place], asked) for place, asked in zip(places, turns, strict=True)
    ]
    faults: Counter[str] = Counter()
    queries: list[WrittenQuery] = []
    with closing(_ask_server(server, prompts, workspace)) as answers:
        for number, answer in enumerate(answers, 1):
            place = places[number - 1]
            written = _read_reply(answer, place, turns[number - 1], passages[place])
            queries += written
            if not all(query.fault for query in written):
                continue
            faults[written[0].fault] += 1
            if number >= min(_PROBATION, len(places)) and faults.total() > _MOST_BAD * number:
                raise DataError(_describe_bad(server, number, faults, answer))
    return drop_repeated(queries)


def _ask_server(
    server: ChatServer, prompts: Sequence[str], workspace: Workspace
) -> Generator[Answer]:
    """Yield the answer to each prompt, in order; replies are kept in the store of the run.

    A caller that stops early loses no reply to a request that was sent.
    """
    client = ChatClient(server, workspace.store / "replies")
    missing = sum(client.read_kept(prompt) is None for prompt in prompts)
    note = f"{missing:,} of them to be sent"

    def ask(prompt: str) -> Answer:
        try:
            return client.ask(prompt)
        except NoReplyError as error:
            return str(error)
        except ServiceError:
            client.stop.set()
            raise

    workspace.progress(0, len(prompts), "requests", note)
    threads = ThreadPoolExecutor(server.parallel)
    try:
        for number, answer in enumerate(threads.map(ask, prompts), 1):
            workspace.progress(number, len(prompts), "requests", note)
            yield answer
    finally:
        client.stop.set()
        threads.shutdown(cancel_futures=True)


def _describe_bad(server: ChatServer, number: int, faults: Counter[str], answer: Answer) -> str:
    seen = "; ".join(f"{fault} ({count:,})" for fault, count in faults.most_common(4))
    text = answer if isinstance(answer, str) else answer.text
    return (
        f"{server.url}: {faults.total():,} of {number:,} replies are of no use: {seen}; the last of them "
        f"begins '{shorten(text, 120)}'. All are kept; choose another model"
    )


def take_turns(kinds: Sequence[ModelKind], passage: TextPassage, most: int) -> list[ModelKind]:
    """Return the kinds of the `most` queries of a passage, which depend on its text alone.

    So a passage gets the same request whatever documents are added, and all kinds are about as frequent.
    """
    first = even_place("kinds", passage.full_text) % len(kinds)
    return [kinds[(first + number) % len(kinds)] for number in range(most)]


def _read_reply(
    answer: Answer, place: int, kinds: Sequence[ModelKind], passage: TextPassage
) -> list[WrittenQuery]:
    """Return the queries of an answer; one with a fault and without text if it has none."""
    if isinstance(answer, str):
        return [WrittenQuery("", place, kinds[0], f"no reply: {shorten(answer, 120)}")]
    texts = read_queries(answer.text)
    is_cut = answer.ended == "length"
    if is_cut:
        texts = texts[:-1]  # it ends in the middle
    if not texts:
        fault = "the reply is cut" if is_cut else NO_QUERY
        return [WrittenQuery("", place, kinds[0], fault)]
    return [
        WrittenQuery(text, place, kind, find_query_fault(text, passage))
        for text, kind in zip(texts, kinds, strict=False)
    ]
