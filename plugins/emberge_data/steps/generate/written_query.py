"""Queries that were written for passages, and the checks that all of them must pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from emberge import even_place

from emberge_data.documents.cutting import TextPassage, count_words
from emberge_data.steps.text_similarity import normalise, words

MIN_WORDS = 8
"""Words of a passage from which it gets queries; of a shorter one, other passages say the same."""


@dataclass(frozen=True, slots=True)
class WrittenQuery:
    """A query, the index of its passage, and its kind; `fault` is why it is dropped, "" if it is kept.

    `heading` is the heading that is taken out of passages with it, "" if that is the query itself or none.
    """

    text: str
    place: int
    kind: str
    fault: str = ""
    heading: str = ""


def places_to_ask(passages: Sequence[TextPassage]) -> list[int]:
    """Return the indices of passages that may get queries: long enough, and with text that no other has."""
    counts = Counter(normalise(passage.text) for passage in passages)
    return [
        place
        for place, passage in enumerate(passages)
        if counts[normalise(passage.text)] == 1 and len(words(normalise(passage.text))) >= MIN_WORDS
    ]


def sample_places(
    places: Sequence[int], passages: Sequence[TextPassage], limit: int | None
) -> Sequence[int]:
    """Return at most `limit` of the passages, in order; a larger limit only adds some."""
    if limit is None:
        return places
    order = sorted(places, key=lambda place: even_place("limit", passages[place].id))
    return sorted(order[:limit])


def is_specific(text: str) -> bool:
    """Return whether a query has at least two words, or four characters of a script without spaces."""
    return count_words([text]) >= 2 or len(words(normalise(text))) >= 4


def drop_repeated(queries: Iterable[WrittenQuery]) -> list[WrittenQuery]:
    """Return all queries; one that several passages have, or a passage twice, is no longer kept."""
    listed = list(queries)
    places: dict[str, set[int]] = {}
    for query in listed:
        if not query.fault:
            places.setdefault(normalise(query.text), set()).add(query.place)
    seen: set[str] = set()
    checked = []
    for query in listed:
        key = normalise(query.text)
        if not query.fault and len(places[key]) > 1:
            query = replace(query, fault="stands for several passages")
        elif not query.fault and key in seen:
            query = replace(query, fault="written twice for one passage")
        seen.add(key)
        checked.append(query)
    return checked


def is_within(query: str, text: str) -> bool:
    """Return whether a query's words stand in a text in this order, whatever case and punctuation."""
    return join_words(query) in join_words(text)


def join_words(text: str) -> str:
    """Return the words of a text with spaces around them, without case and punctuation."""
    return f" {' '.join(words(normalise(text)))} "
