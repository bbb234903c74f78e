"""Modalities of a local set's queries and documents, in mteb's words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, get_args

from emberge import EvalData, MediaKind, RerankingData, RetrievalData, split_parts
from emberge.contracts import media_kinds
from emberge.data import eval_texts


class Sides(NamedTuple):
    """Modalities of queries and of documents, at least one each."""

    queries: list[str]
    documents: list[str]

    @property
    def modalities(self) -> list[str]:
        """All modalities, each once."""
        return list(dict.fromkeys([*self.queries, *self.documents]))

    @property
    def category(self) -> str | None:
        """Word of mteb's for the two sides, as "t2i"; None for two that it has no word for."""
        from mteb.abstasks.task_metadata import TaskCategory

        letters = ["".join(name[0] for name in side) for side in self]
        category = "2".join(letters)
        return category if category in get_args(TaskCategory) else None


def local_media(data: EvalData) -> tuple[MediaKind, ...]:
    """Return the kinds of media that a set has anywhere."""
    return media_kinds(text for _, text in eval_texts(data))


def media_sides(data: EvalData) -> Sides | None:
    """Return the modalities of a set to search in; None for one of text alone, and for other sets.

    In other sets, which mteb gives to a model as they are, references to media are in the texts.
    """
    if not isinstance(data, RetrievalData | RerankingData) or not local_media(data):
        return None
    if isinstance(data, RetrievalData):
        queries: Iterable[str] = data.queries.values()
        documents: Iterable[str] = data.corpus.values()
    else:
        queries = data.queries
        both = (*data.positives, *data.negatives)
        documents = (text for texts in both for text in texts)
    sides = Sides(_modalities(queries), _modalities(documents))
    # Without a word for the pair mteb gives each side the columns of both.
    return sides if sides.category else Sides(sides.modalities, sides.modalities)


def _modalities(texts: Iterable[str]) -> list[str]:
    """Return the modalities of one side, media first, as mteb writes its pairs."""
    found = list(texts)
    worded = any(isinstance(part, str) for text in found for part in split_parts(text))
    return [*media_kinds(found), *(["text"] if worded else [])]
