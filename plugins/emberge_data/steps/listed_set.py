"""Texts of a set, listed once each, and arranged as the queries and documents of a search."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

from emberge import DataError, Example, Workspace

from emberge_data.steps.search.exclusions import Lists

if TYPE_CHECKING:
    import numpy as np
    from emberge.data import DistinctTexts, StoredDataset
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class ListedTexts:
    """Texts in the order of their rows: row i has the texts `places[starts[i] : starts[i + 1]]`."""

    places: NDArray[np.int64]
    starts: NDArray[np.int64]

    @property
    def rows(self) -> NDArray[np.int64]:
        """Row index of each text."""
        import numpy as np

        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def of(self, row: int) -> NDArray[np.int64]:
        """Return the places of a row's texts."""
        return self.places[self.starts[row] : self.starts[row + 1]]


@dataclass(frozen=True, eq=False)
class ListedSet:
    """A set whose texts are listed; `extra` are the places of further texts, such as a corpus."""

    dataset: StoredDataset
    texts: DistinctTexts
    anchors: NDArray[np.int64]
    positives: ListedTexts
    negatives: ListedTexts
    labels: Sequence[str | None]
    extra: NDArray[np.int64]

    @property
    def name(self) -> str:
        """Name of the set."""
        return self.dataset.info.name

    @classmethod
    def of(
        cls, dataset: StoredDataset, workspace: Workspace, extra: Iterable[str] = ()
    ) -> ListedSet:
        """List the texts of a set, row by row, and the `extra` texts last.

        Raises:
            DataError: if the set's rows have no positives of their own.
        """
        import numpy as np
        from emberge.data import DistinctTexts

        if dataset.info.task == "text" or dataset.draws:
            raise DataError(without_positives(dataset.info.name))
        above, below, labels = array("q", [0]), array("q", [0]), []

        def given() -> Iterator[str]:
            for example in rows_of(dataset):
                above.append(above[-1] + len(example.positives))
                below.append(below[-1] + len(example.negatives))
                labels.append(example.label)
                yield example.anchor
                yield from example.positives
                yield from example.negatives
            yield from extra

        texts = DistinctTexts(given(), workspace.work)
        starts, others = np.asarray(above, np.int64), np.asarray(below, np.int64)
        if not np.diff(starts).all():
            row = 1 + int(np.argmin(np.diff(starts)))
            raise DataError(f"dataset '{dataset.info.name}': row {row} has no positive; remove it")
        # Row i begins after an anchor, and all positives and negatives, of each row before it.
        begins = np.arange(len(starts)) + starts + others
        anchors = begins[:-1]
        kinds = np.full(begins[-1], 2, dtype=np.int8)
        kinds[anchors] = 0
        positives = np.repeat(anchors + 1 - starts[:-1], np.diff(starts)) + np.arange(starts[-1])
        kinds[positives] = 1
        places = texts.places[: begins[-1]]
        return cls(
            dataset,
            texts,
            places[kinds == 0],
            ListedTexts(places[kinds == 1], starts),
            ListedTexts(places[kinds == 2], others),
            labels,
            texts.places[begins[-1] :],
        )


def rows_of(dataset: StoredDataset) -> Iterator[Example]:
    """Yield the examples of a set in order."""
    for row in range(len(dataset)):
        yield dataset[row]


def without_positives(name: str) -> str:
    """Return the message for a set whose rows have no positives of their own."""
    return (
        f"dataset '{name}' has no positives of its own, so no pair to judge; leave it out with `only`, or "
        "give its rows positives"
    )


class ChosenTexts(Sequence[str]):
    """Selection of a list's texts by index, read on access."""

    def __init__(self, texts: Sequence[str], places: NDArray[np.int64]) -> None:
        self.texts, self.places = texts, places

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self.texts[int(place)] for place in self.places[index]]
        return self.texts[int(self.places[index])]


@dataclass(frozen=True, eq=False)
class ArrangedSet:
    """Distinct anchors and documents of a set: rows with the same anchor are one query.

    `query_of` [rows] has the number of each row's query. `document_of` has the document number of each listed
    text, or -1 for a text that is not a document.
    """

    listed: ListedSet
    queries: ChosenTexts
    documents: ChosenTexts
    query_of: NDArray[np.int64]
    document_of: NDArray[np.int64]

    @classmethod
    def of(cls, listed: ListedSet, documents: NDArray[np.int64]) -> ArrangedSet:
        """Arrange a set whose documents are the texts at these sorted places."""
        import numpy as np

        queries, query_of = np.unique(listed.anchors, return_inverse=True)
        document_of = np.full(len(listed.texts), -1)
        document_of[documents] = np.arange(len(documents))
        texts = listed.texts
        sides = ChosenTexts(texts, queries), ChosenTexts(texts, documents)
        return cls(listed, *sides, query_of, document_of)

    @property
    def dataset(self) -> StoredDataset:
        """The set itself."""
        return self.listed.dataset

    @property
    def name(self) -> str:
        """Name of the set."""
        return self.listed.dataset.info.name

    def numbers(self, parts: ListedTexts) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the query number and the document number of each of these texts."""
        return self.query_of[parts.rows], self.document_of[parts.places]

    def lists(self, *pairs: tuple[NDArray[np.int64], NDArray[np.int64]]) -> Lists:
        """Group (query, document) pairs by query, without texts that are not documents."""
        import numpy as np

        queries, documents = (np.concatenate(side) for side in zip(*pairs, strict=True))
        is_document = documents >= 0
        return Lists.of_pairs(queries[is_document], documents[is_document], len(self.queries))
