"""Queries from the structure of documents, whose text is taken out of the passages that they lead to."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from emberge_data.documents.cutting import TextPassage, count_words, split_sentences
from emberge_data.documents.source_document import SourceDocument
from emberge_data.steps.text_similarity import normalise, split_words

StructureKind = Literal["title", "heading", "docstring", "sentence"]
STRUCTURE_KINDS: tuple[StructureKind, ...] = ("title", "heading", "docstring", "sentence")

FEWEST_PASSAGE_WORDS = 8
"""Words of a passage from which it gets queries; of a shorter one, other passages say the same."""
# Words of a first sentence that is a query.
_SENTENCE_WORDS = range(4, 41)
_FEWEST_HEADING_WORDS = 3  # a heading with fewer is put behind the document's title
_EMPTY_DOCSTRING = re.compile(r"[ \t]*[rRuU]?(\"\"\"|''')\s*\1[ \t]*\n?")


@dataclass(frozen=True, slots=True)
class WrittenQuery:
    """A query, the index of its passage, and its kind; `problem` is why it is dropped, "" if it is kept.

    `heading` is the heading that is taken out of passages with it, "" if that is the query itself or none.
    """

    text: str
    place: int
    kind: str
    problem: str = ""
    heading: str = ""


def write_from_structure(
    documents: Sequence[SourceDocument],
    passages: Sequence[Sequence[TextPassage]],
    kinds: Sequence[str],
    most: int,
) -> tuple[list[TextPassage], list[WrittenQuery]]:
    """Return all passages of the documents without the texts of queries, and the queries.

    `passages` has those of each document. A passage gets at most `most` queries, in the order of `kinds`. A
    query's text is taken out of all passages of its document: as title, as heading and within the text. A
    query that another passage has too, or whose text is still in its passage, has a problem.
    """
    flat = [passage for group in passages for passage in group]
    starts = itertools.accumulate(map(len, passages), initial=0)
    askable = _find_askable(flat)
    offered = [
        query
        for document, group, start in zip(documents, passages, starts, strict=False)
        for query in _list_queries(document, group, start)
        if query.kind in kinds and query.place in askable
    ]
    chosen = _choose(_drop_repeated(offered), kinds, most)
    taken = _take_out(passages, [query for query in chosen if not query.problem])
    return taken, [
        query if query.problem else replace(query, problem=_explain_drop(query, taken[query.place]))
        for query in chosen
    ]


def _choose(queries: Sequence[WrittenQuery], kinds: Sequence[str], most: int) -> list[WrittenQuery]:
    """Return at most `most` queries of each passage without a problem, and all that have a problem."""
    counts: dict[int, int] = defaultdict(int)
    chosen = []
    for query in sorted(queries, key=lambda one: kinds.index(one.kind)):
        if query.problem or counts[query.place] < most:
            counts[query.place] += not query.problem
            chosen.append(query)
    return sorted(chosen, key=lambda one: one.place)


def _explain_drop(query: WrittenQuery, passage: TextPassage) -> str:
    if is_within(query.text, passage.full_text):
        return "is still in its passage"
    if count_words([passage.text]) < FEWEST_PASSAGE_WORDS and not _is_specific(passage.text):
        return "leaves too little of its passage"
    return ""


def _list_queries(
    document: SourceDocument, passages: Sequence[TextPassage], start: int
) -> Iterator[WrittenQuery]:
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
            if _is_specific(text):
                yield WrittenQuery(" ".join(text.split()), place, kind, heading=heading)


def _offer_heading(title: str, heading: str) -> tuple[str, str, str]:
    """Return the offer of a heading, after the title if the heading alone says little."""
    text = heading if count_words([heading]) >= _FEWEST_HEADING_WORDS else f"{title} {heading}"
    return "heading", text.strip(), heading


def _find_first_sentence(text: str) -> Iterator[str]:
    """Yield the first sentence of a passage if it is of prose and not the whole passage."""
    paragraph = text.partition("\n\n")[0]
    sentence = split_sentences(" ".join(paragraph.split()))[0] if paragraph.strip() else ""
    is_prose = sentence.endswith((".", "!", "?", "。", "！", "？")) and sentence[:1].isalnum()
    if is_prose and len(sentence.split()) <= _SENTENCE_WORDS.stop and "|" not in sentence:
        count = count_words([sentence])
        has_length = count in _SENTENCE_WORDS or " " not in sentence
        if has_length and count_words([text]) - count >= FEWEST_PASSAGE_WORDS:
            yield sentence


def _take_out(
    passages: Sequence[Sequence[TextPassage]], chosen: Sequence[WrittenQuery]
) -> list[TextPassage]:
    """Return the passages of all documents without the texts of the queries of their document."""
    taken: list[TextPassage] = []
    by_place: dict[int, list[WrittenQuery]] = defaultdict(list)
    for query in chosen:
        by_place[query.place].append(query)
    for group in passages:
        places = range(len(taken), len(taken) + len(group))
        queries = [query for place in places for query in by_place[place]]
        headings = {query.heading or query.text for query in queries}
        # A search for plain text is far faster than one for a pattern, and most passages have no query.
        joined = {query.text: _join_words(query.text) for query in queries}
        title = group[0].title if group else ""
        title = "" if any(is_within(heading, title) for heading in headings) else title
        for passage in group:
            text, joined_text = passage.text, _join_words(passage.text)
            for query_text, query_words in joined.items():
                if query_words in joined_text:
                    text = _remove_text(text, query_text)
            left = tuple(heading for heading in passage.headings if heading not in headings)
            taken.append(replace(passage, title=title, headings=left, text=text))
    return taken


def _remove_text(text: str, query: str) -> str:
    """Return a text without all occurrences of a query, whatever the case and white space between words."""
    words = r"\s+".join(map(re.escape, query.split()))
    start = r"(?<!\w)" if " " in query else ""
    end = r"(?!\w)" if " " in query else ""
    shorter, count = re.subn(rf"{start}{words}{end}[ \t]*", "", text, flags=re.IGNORECASE)
    if not count:
        return text
    return _EMPTY_DOCSTRING.sub("", shorter).strip("\n").rstrip()


def _find_askable(passages: Sequence[TextPassage]) -> set[int]:
    """Return the indices of passages that may get queries: long enough, and with text that no other has."""
    texts = [normalise(passage.text) for passage in passages]
    counts = Counter(texts)
    return {
        place
        for place, text in enumerate(texts)
        if counts[text] == 1 and len(split_words(text)) >= FEWEST_PASSAGE_WORDS
    }


def _is_specific(text: str) -> bool:
    """Return whether a query has at least two words, or four characters of a script without spaces."""
    return count_words([text]) >= 2 or len(split_words(normalise(text))) >= 4


def _drop_repeated(queries: Sequence[WrittenQuery]) -> list[WrittenQuery]:
    """Return all queries; one that several passages have, or a passage twice, is no longer kept."""
    places: dict[str, set[int]] = defaultdict(set)
    for query in queries:
        places[normalise(query.text)].add(query.place)
    seen: set[str] = set()
    checked = []
    for query in queries:
        key = normalise(query.text)
        if len(places[key]) > 1:
            query = replace(query, problem="stands for several passages")
        elif key in seen:
            query = replace(query, problem="written twice for one passage")
        seen.add(key)
        checked.append(query)
    return checked


def is_within(query: str, text: str) -> bool:
    """Return whether a query's words stand in a text in this order, whatever case and punctuation."""
    return _join_words(query) in _join_words(text)


def _join_words(text: str) -> str:
    """Return the words of a text with spaces around them, without case and punctuation."""
    return f" {' '.join(split_words(normalise(text)))} "
