"""Queries from the structure of documents, whose text is taken out of the passages that they lead to."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from emberge_data.documents.cutting import TextPassage, count_words, split_sentences
from emberge_data.documents.source_document import SourceDocument
from emberge_data.steps.generate.written_query import (
    MIN_WORDS,
    WrittenQuery,
    drop_repeated,
    drop_where,
    is_specific,
    is_within,
    join_words,
    places_to_ask,
    sample_places,
)

StructureKind = Literal["title", "heading", "docstring", "sentence"]
STRUCTURE_KINDS: tuple[StructureKind, ...] = ("title", "heading", "docstring", "sentence")

# Words of a first sentence that is a query.
_SENTENCE_WORDS = range(4, 41)
_HEADING_WORDS = 3  # a heading with fewer is put behind the document's title
_EMPTY_DOCSTRING = re.compile(r"[ \t]*[rRuU]?(\"\"\"|''')\s*\1[ \t]*\n?")


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A query that a document's structure offers, and the heading that is taken out with it, "" if none."""

    query: WrittenQuery
    heading: str = ""


def write_from_structure(
    documents: Sequence[SourceDocument],
    passages: Sequence[Sequence[TextPassage]],
    kinds: Sequence[StructureKind],
    most: int,
    limit: int | None = None,
) -> tuple[list[TextPassage], list[WrittenQuery]]:
    """Return all passages of the documents without the texts of queries, and the queries.

    `passages` has those of each document. A passage gets at most `most` queries, in the order of `kinds`, and
    at most `limit` passages get any. A query's text is taken out of all passages of its document: as title,
    as heading and within the text. A query that another passage has too, or whose text is still in its
    passage, has a fault.
    """
    flat = [passage for group in passages for passage in group]
    starts = [sum(map(len, passages[:number])) for number in range(len(documents))]
    askable = set(places_to_ask(flat))
    candidates = [
        candidate
        for number, document in enumerate(documents)
        for candidate in _list_candidates(document, passages[number], starts[number])
        if candidate.query.kind in kinds and candidate.query.place in askable
    ]
    offered = sorted({candidate.query.place for candidate in candidates})
    sampled = set(sample_places(offered, flat, limit))
    candidates = [candidate for candidate in candidates if candidate.query.place in sampled]
    queries = drop_repeated(candidate.query for candidate in candidates)
    chosen = _choose(
        [replace(one, query=query) for one, query in zip(candidates, queries, strict=True)],
        kinds,
        most,
    )
    document_of = [number for number, group in enumerate(passages) for _ in group]
    taken = _take_out(flat, document_of, [one for one in chosen if not one.query.fault])
    kept = drop_where(
        (one.query for one in chosen), lambda query: _find_fault(query, taken[query.place])
    )
    return taken, kept


def _choose(candidates: Sequence[_Candidate], kinds: Sequence[str], most: int) -> list[_Candidate]:
    """Return at most `most` candidates of each passage without a fault, and all that have a fault."""
    counts: dict[int, int] = defaultdict(int)
    chosen = []
    for candidate in sorted(candidates, key=lambda one: kinds.index(one.query.kind)):
        place = candidate.query.place
        if candidate.query.fault or counts[place] < most:
            counts[place] += not candidate.query.fault
            chosen.append(candidate)
    return sorted(chosen, key=lambda one: one.query.place)


def _find_fault(query: WrittenQuery, passage: TextPassage) -> str:
    if is_within(query.text, passage.full_text):
        return "is still in its passage"
    if count_words([passage.text]) < MIN_WORDS and not is_specific(passage.text):
        return "leaves too little of its passage"
    return ""


# ── candidates ──────────────────────────────────────────────────────────────────────────────────────


def _list_candidates(
    document: SourceDocument, passages: Sequence[TextPassage], start: int
) -> Iterator[_Candidate]:
    """Yield the queries that a document offers; `start` is the index of its first passage."""
    is_code = document.name.endswith(".py")
    for place, passage in enumerate(passages, start):
        section = document.sections[passage.section]
        offers: list[tuple[str, str, str]] = []
        if place == start and not is_code:
            offers.append(("title", document.title, ""))
        if passage.is_first and passage.headings and not is_code:
            offers.append(_offer_heading(document.title, passage.headings[-1]))
        if passage.is_first and section.summary:
            offers.append(("docstring", section.summary, ""))
        if not is_code:
            offers += [("sentence", text, "") for text in _find_first_sentence(passage.text)]
        for kind, text, heading in offers:
            if is_specific(text):
                yield _Candidate(WrittenQuery(" ".join(text.split()), place, kind), heading)


def _offer_heading(title: str, heading: str) -> tuple[str, str, str]:
    """Return the offer of a heading, after the title if the heading alone says little."""
    text = heading if count_words([heading]) >= _HEADING_WORDS else f"{title} {heading}"
    return "heading", text.strip(), heading


def _find_first_sentence(text: str) -> Iterator[str]:
    """Yield the first sentence of a passage if it is of prose and not the whole passage."""
    paragraph = text.partition("\n\n")[0]
    sentence = split_sentences(" ".join(paragraph.split()))[0] if paragraph.strip() else ""
    is_prose = sentence.endswith((".", "!", "?", "。", "！", "？")) and sentence[:1].isalnum()
    if is_prose and len(sentence.split()) <= _SENTENCE_WORDS.stop and "|" not in sentence:
        rest = count_words([text]) - count_words([sentence])
        if rest >= MIN_WORDS and (
            count_words([sentence]) in _SENTENCE_WORDS or " " not in sentence
        ):
            yield sentence


# ── taking out ──────────────────────────────────────────────────────────────────────────────────────


def _take_out(
    passages: Sequence[TextPassage], document_of: Sequence[int], chosen: Sequence[_Candidate]
) -> list[TextPassage]:
    """Return the passages without the texts of the queries of their document."""
    by_document: dict[int, list[_Candidate]] = defaultdict(list)
    for candidate in chosen:
        by_document[document_of[candidate.query.place]].append(candidate)
    extractors = {number: _Extractor(listed) for number, listed in by_document.items()}
    return [
        extractors[number].take_out(passage) if number in extractors else passage
        for number, passage in zip(document_of, passages, strict=True)
    ]


class _Extractor:
    """Takes the texts of a document's queries out of its passages."""

    def __init__(self, candidates: Sequence[_Candidate]) -> None:
        self._headings = {one.heading or one.query.text for one in candidates}
        # A search for plain text is far faster than one for a pattern, and most passages have no query.
        self._joined = {one.query.text: join_words(one.query.text) for one in candidates}
        self._titles: dict[str, str] = {}

    def take_out(self, passage: TextPassage) -> TextPassage:
        """Return a passage without the texts, also in its title and headings."""
        text, joined_text = passage.text, join_words(passage.text)
        for query, joined in self._joined.items():
            if joined in joined_text:
                text = _remove_text(text, query)
        headings = tuple(heading for heading in passage.headings if heading not in self._headings)
        return replace(
            passage, title=self._shorten_title(passage.title), headings=headings, text=text
        )

    def _shorten_title(self, title: str) -> str:
        """Return a title, or "" if a query or heading that is taken out stands in it."""
        if title not in self._titles:
            is_query = any(is_within(heading, title) for heading in self._headings)
            self._titles[title] = "" if is_query else title
        return self._titles[title]


def _remove_text(text: str, query: str) -> str:
    """Return a text without all occurrences of a query, whatever the case and white space between words."""
    words = r"\s+".join(map(re.escape, query.split()))
    start = r"(?<!\w)" if " " in query else ""
    end = r"(?!\w)" if " " in query else ""
    found = re.compile(rf"{start}{words}{end}[ \t]*", re.IGNORECASE)
    shorter, count = found.subn("", text)
    if not count:
        return text
    return _EMPTY_DOCSTRING.sub("", shorter).strip("\n").rstrip()
