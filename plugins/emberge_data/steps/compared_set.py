"""Texts of a training set, each listed once, as the queries and documents that a teacher compares."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar, overload

from emberge import DataError, Example, Workspace

if TYPE_CHECKING:
    import numpy as np
    from emberge.data import StoredDataset
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
Value = TypeVar("Value", bound="np.generic")
# Number of a text that is no document.
NO_TEXT = -1
_ANCHOR, _POSITIVE, _NEGATIVE = range(3)


def list_rows(dataset: StoredDataset) -> Iterator[Example]:
    """Yield the examples of a set in order."""
    return (dataset[row] for row in range(len(dataset)))


def explain_missing_positives(name: str) -> str:
    """Return the message for a set whose rows have no positives of their own."""
    return (
        f"dataset '{name}' has no positives of its own, so no pair to judge; leave it out with `only`, or "
        "give its rows positives"
    )


class ChosenTexts(Sequence[str]):
    """Selection of a list's texts by index, read on access, each after `prefix`."""

    def __init__(self, texts: Sequence[str], places: Numbers, prefix: str = "") -> None:
        self.texts, self.places, self.prefix = texts, places, prefix

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self.prefix + self.texts[int(place)] for place in self.places[index]]
        return self.prefix + self.texts[int(self.places[index])]

    def take(self, numbers: Numbers, prefix: str | None) -> ChosenTexts:
        """Return the texts with these numbers, each after `prefix`."""
        return ChosenTexts(self.texts, self.places[numbers], prefix or "")


@dataclass(frozen=True, slots=True, eq=False)
class TextPairs:
    """Pairs of a query and a document in the order of rows: numbers of rows, queries and documents [n].

    The number of a text that is no document is NO_TEXT.
    """

    rows: Numbers
    queries: Numbers
    documents: Numbers

    def split(self, values: NDArray[Value], row_count: int) -> Iterator[NDArray[Value]]:
        """Yield the values [n] of the pairs of each row."""
        import numpy as np

        starts = np.searchsorted(self.rows, np.arange(row_count + 1))
        return (values[start:end] for start, end in itertools.pairwise(starts))


@dataclass(frozen=True, eq=False)
class ComparedSet:
    """Distinct queries and documents of a set; rows with the same anchor are one query.

    `anchors` are pairs of each row's query with its anchor as a document.
    """

    dataset: StoredDataset
    queries: ChosenTexts
    documents: ChosenTexts
    anchors: TextPairs
    positives: TextPairs
    negatives: TextPairs

    @cached_property
    def labels(self) -> list[str | None]:
        """Label of each row, None for a row without one."""
        return [example.label for example in list_rows(self.dataset)]

    @property
    def name(self) -> str:
        """Name of the set."""
        return self.dataset.info.name

    @classmethod
    def of(
        cls,
        dataset: StoredDataset,
        workspace: Workspace,
        *,
        negatives: bool = True,
        corpus: Iterable[str] = (),
    ) -> ComparedSet:
        """List the texts of a set; its documents are the positives, the `negatives` and the `corpus`.

        Raises:
            DataError: if the set's rows have no positives of their own.
        """
        import numpy as np

        from emberge_data.steps.row_texts import DistinctTexts, read_row_texts

        if dataset.info.task == "text" or dataset.draws_positives:
            raise DataError(explain_missing_positives(dataset.info.name))
        counts = array("q")
        texts = itertools.chain(read_row_texts([dataset], counts), corpus)
        distinct = DistinctTexts(texts, workspace.work)
        # Texts stand in the order of rows, each row's anchor, positives and negatives; then the corpus:
        #   rows      0       0         0         0         1       1       …
        #   sides     anchor  positive  positive  negative  anchor  positive …
        #   numbers   4       2         7         4         …          of distinct texts
        sizes = np.asarray(counts, np.int64).reshape(-1, 3)
        rows = np.repeat(np.arange(len(sizes)), sizes.sum(axis=1))
        sides = np.repeat(np.tile(np.arange(3), len(sizes)), sizes.reshape(-1))
        numbers, corpus_numbers = np.split(distinct.places, [len(rows)])
        is_document = (sides == _POSITIVE) | ((sides == _NEGATIVE) & negatives)
        documents = np.union1d(numbers[is_document], corpus_numbers)
        document_by_number = np.full(len(distinct), NO_TEXT)
        document_by_number[documents] = np.arange(len(documents))
        queries, query_by_row = np.unique(numbers[sides == _ANCHOR], return_inverse=True)

        def list_pairs(side: int) -> TextPairs:
            side_rows, side_numbers = rows[sides == side], numbers[sides == side]
            return TextPairs(side_rows, query_by_row[side_rows], document_by_number[side_numbers])

        return cls(
            dataset,
            queries=ChosenTexts(distinct, queries),
            documents=ChosenTexts(distinct, documents),
            anchors=list_pairs(_ANCHOR),
            positives=list_pairs(_POSITIVE),
            negatives=list_pairs(_NEGATIVE),
        )
