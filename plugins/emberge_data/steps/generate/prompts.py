"""Prompts that ask a model for queries, and the reading of its replies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from emberge_data.documents.cutting import TextPassage, count_words
from emberge_data.steps.generate.written_query import is_specific, is_within
from emberge_data.steps.text_similarity import normalise, words

ModelKind = Literal["question", "keywords", "claim"]
MODEL_KINDS: tuple[ModelKind, ...] = ("question", "keywords", "claim")
NO_QUERY = "no query in the reply"

_DESCRIPTIONS: dict[ModelKind, str] = {
    "question": "a question of somebody who has not seen the passage",
    "keywords": "two to six keywords, as typed into a search field",
    "claim": "a short statement that the passage supports, in words of your own",
}
_LONGEST_WORDS, _LONGEST_CHARACTERS = 40, 300
_QUOTED_WORDS = 10
"""Words of a query that stands in its passage from which it counts as a quotation."""
_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_FENCE = re.compile(r"^```.*$", re.MULTILINE)
_BULLET = re.compile(
    r"^\s*(?:[-*•–]\s+|\(?\d{1,2}[.):]\s*|(?:question|keywords?|claim|query|q)\s*\d*\s*:\s*)+",
    re.IGNORECASE,
)
_QUOTES = "\"'“”„«»`*"
_OPENING = re.compile(r"(here (is|are)|sure|certainly|of course|the (queries|questions))\b", re.I)
_REFUSAL = re.compile(
    r"(i['’]?m sorry|i am sorry|sorry, |i (cannot|can['’]?t|am unable)|as an ai)\b", re.I
)
_SELF = re.compile(
    r"\b(this|the|given|above) (passage|document|text|article|excerpt|section)\b", re.I
)


def ask_for_queries(passage: TextPassage, kinds: Sequence[ModelKind]) -> str:
    """Return the prompt that asks for one query of each kind, in this order."""
    listed = "\n".join(f"{n}. {_DESCRIPTIONS[kind]}" for n, kind in enumerate(kinds, 1))
    number = len(kinds)
    noun = "search query" if number == 1 else "search queries"
    lines = "one line" if number == 1 else f"{number} lines"
    title = f"Title: {passage.context}\n" if passage.context else ""
    return (
        f"Write {number} {noun} that the passage below answers, so specific that other passages do not:\n"
        f"{listed}\n"
        "Write in the language of the passage. Do not copy its sentences, and do not mention the passage or "
        f"the document. Answer with {lines}, one query in each, and nothing else.\n\n"
        f"{title}Passage:\n<<<\n{passage.text}\n>>>"
    )


def read_queries(reply: str) -> list[str]:
    """Return the queries of a reply: the lines of its text."""
    text = _FENCE.sub("", _THINKING.sub("", reply)).strip()
    # White space is joined first: the pattern's time grows with the square of its length.
    bare = (_BULLET.sub("", " ".join(line.split())) for line in text.splitlines())
    queries = [query for line in bare if (query := line.strip(_QUOTES).strip())]
    if len(queries) > 1 and _OPENING.match(queries[0]):
        queries = queries[1:]
    return queries


def find_query_fault(query: str, passage: TextPassage) -> str:
    """Return why a text that a model wrote is no query for its passage; "" if it is one."""
    if not any(letter.isalpha() for letter in query) or not is_specific(query):
        return "too short"
    length = len(words(normalise(query)))
    if is_within(passage.text, query) or (
        length >= _QUOTED_WORDS and is_within(query, passage.full_text)
    ):
        return "quotes its passage"
    if len(query) > _LONGEST_CHARACTERS or count_words([query]) > _LONGEST_WORDS:
        return "too long"
    if _REFUSAL.match(query):
        return "a refusal"
    if _SELF.search(query):
        return "speaks of its passage"
    return ""
