"""Queries that a model writes for passages, and a model's judgement of queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from emberge import DataError, Workspace
from emberge.data import even_place
from emberge.passages import TextPassage
from emberge.wording import shorten

from emberge_data.steps.generate.ask_authors import Answer, RequestEstimate, ask_author
from emberge_data.steps.generate.chat_server import ChatServer
from emberge_data.steps.generate.local_author import LocalAuthor
from emberge_data.steps.generate.prompts import (
    NO_QUERY,
    ModelKind,
    ask_for_judgement,
    ask_for_queries,
    find_query_fault,
    read_judgement,
    read_queries,
)
from emberge_data.steps.generate.written_query import WrittenQuery, drop_repeated

QUERY_TOKENS = 25
"""Tokens of a query, about."""
JUDGEMENT_TOKENS = 2
# Largest share of an author's replies that may be of no use, and replies after which it is first looked at.
_MOST_BAD = 0.5
_PROBATION = 20
"""Replies after which a model that writes too little of use is stopped."""


@dataclass
class _BadReplies:
    """Counts of an author's useless replies, by the reason."""

    author: str
    asked: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    example: str = ""

    def count(self, reason: str, answer: Answer) -> None:
        """Count a reply; `reason` is why it is of no use, "" if it is.

        Raises:
            DataError: after some replies, if too many were of no use.
        """
        self.asked += 1
        if reason:
            self.reasons[reason] += 1
            self.example = answer if isinstance(answer, str) else answer.text
        bad = self.reasons.total()
        if self.asked >= _PROBATION and bad > _MOST_BAD * self.asked:
            self._refuse(bad)

    def finish(self) -> None:
        """Check the share again at the end, also of few replies.

        Raises:
            DataError: if too many were of no use.
        """
        if self.reasons.total() > _MOST_BAD * max(1, self.asked):
            self._refuse(self.reasons.total())

    def _refuse(self, bad: int) -> None:
        seen = "; ".join(f"{reason} ({count:,})" for reason, count in self.reasons.most_common(4))
        raise DataError(
            f"{self.author}: {bad:,} of {self.asked:,} replies are of no use: {seen}; the last of them "
            f"begins '{shorten(self.example, 120)}'. All are kept; choose another model"
        )


def write_by_model(
    author: ChatServer | LocalAuthor,
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
        ServiceError: if a server refuses the key or the model, is not there, or answers nothing.
    """
    turns = [take_turns(kinds, passages[place], most) for place in places]
    prompts = [
        ask_for_queries(passages[place], asked) for place, asked in zip(places, turns, strict=True)
    ]
    answers = ask_author(
        author, prompts, workspace, tokens_written=QUERY_TOKENS * most, noun="queries"
    )
    bad = _BadReplies(_name_author(author))
    queries: list[WrittenQuery] = []
    with closing(answers):
        for place, asked_kinds, answer in zip(places, turns, answers, strict=True):
            written = _read_reply(answer, place, asked_kinds, passages[place])
            faults = [query.fault for query in written]
            bad.count(faults[0] if all(faults) else "", answer)
            queries += written
        bad.finish()
    return drop_repeated(queries)


def take_turns(kinds: Sequence[ModelKind], passage: TextPassage, most: int) -> list[ModelKind]:
    """Return the kinds of the `most` queries of a passage, which depend on its text alone.

    So a passage gets the same request whatever documents are added, and all kinds are about as frequent.
    """
    first = even_place("kinds", passage.full_text) % len(kinds)
    return [kinds[(first + number) % len(kinds)] for number in range(most)]


def estimate_requests(
    passages: Sequence[TextPassage], places: Sequence[int], kinds: Sequence[ModelKind], most: int
) -> RequestEstimate:
    """Return the estimate of the requests for the passages at `places`, `most` queries for each."""
    prompts = [
        ask_for_queries(passages[place], take_turns(kinds, passages[place], most))
        for place in places
    ]
    return RequestEstimate.of(prompts, QUERY_TOKENS * most)


def estimate_judgements(
    passages: Sequence[TextPassage], places: Sequence[int], most: int
) -> RequestEstimate:
    """Return the estimate of the judgements if every query of the passages at `places` is judged."""
    query = "word " * QUERY_TOKENS
    prompts = [
        ask_for_judgement(query, passages[place], passage_first=True) for place in places
    ] * (2 * most)
    return RequestEstimate.of(prompts, JUDGEMENT_TOKENS)


def _name_author(author: ChatServer | LocalAuthor) -> str:
    return author.url if isinstance(author, ChatServer) else str(author.model)


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
        fault = "the reply is cut at max_tokens" if is_cut else NO_QUERY
        return [WrittenQuery("", place, kinds[0], fault)]
    return [
        WrittenQuery(text, place, kind, find_query_fault(text, passage))
        for text, kind in zip(texts, kinds, strict=False)
    ]


def judge_queries(
    author: ChatServer | LocalAuthor,
    passages: Sequence[TextPassage],
    queries: Sequence[WrittenQuery],
    workspace: Workspace,
) -> list[WrittenQuery]:
    """Return all queries; one that its passage does not answer, by a model's judgement, has a fault.

    The model is asked twice, with the passage and with the query first, and must say yes both times.

    Raises:
        DataError: if more than the share _MOST_BAD of the replies is neither yes nor no.
        ServiceError: if a server refuses the key or the model, is not there, or answers nothing.
    """
    kept = [place for place, query in enumerate(queries) if not query.fault]
    prompts = [
        ask_for_judgement(queries[n].text, passages[queries[n].place], passage_first=passage_first)
        for n in kept
        for passage_first in (True, False)
    ]
    answers = ask_author(
        author, prompts, workspace, tokens_written=JUDGEMENT_TOKENS, noun="judgements"
    )
    bad = _BadReplies(f"judge {_name_author(author)}")
    judgements: list[bool | None] = []
    with closing(answers):
        for answer in answers:
            judgement = None if isinstance(answer, str) else read_judgement(answer.text)
            bad.count("neither yes nor no" if judgement is None else "", answer)
            judgements.append(judgement)
        bad.finish()
    judged = list(queries)
    for n, first, second in zip(kept, judgements[::2], judgements[1::2], strict=True):
        judged[n] = replace(judged[n], fault=_find_judged_fault(first, second))
    return judged


def _find_judged_fault(first: bool | None, second: bool | None) -> str:
    if first is None or second is None:
        return "the judge says neither yes nor no"
    if first != second:
        return "the judge's answer depends on the order"
    return "" if first else "its passage does not answer it, says the judge"
