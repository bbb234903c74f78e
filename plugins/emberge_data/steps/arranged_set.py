"""Queries and documents of a set, each once and numbered as a search wants them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge_data.steps.listed_set import ChosenTexts, ListedSet, ListedTexts
from emberge_data.steps.search.exclusions import Lists

if TYPE_CHECKING:
    import numpy as np
    from emberge.data import StoredDataset
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class ArrangedSet:
    """Distinct anchors and documents of a set: rows with the same anchor are one query.

    `query_of` [rows] has the query of each row, `document_of` the number of each listed text, or -1.
    """

    listed: ListedSet
    queries: ChosenTexts
    documents: ChosenTexts
    query_of: NDArray[np.int64]
    document_of: NDArray[np.int64]

    @classmethod
    def of(cls, listed: ListedSet, documents: NDArray[np.int64]) -> ArrangedSet:
        """Arrange a set with the documents at these places of its texts, which are sorted."""
        import numpy as np

        queries, query_of = np.unique(listed.anchors, return_inverse=True)
        document_of = np.full(len(listed.texts), -1)
        document_of[documents] = np.arange(len(documents))
        texts = listed.texts
        chosen = ChosenTexts(texts, queries), ChosenTexts(texts, documents)
        return cls(listed, *chosen, query_of, document_of)

    @property
    def dataset(self) -> StoredDataset:
        """Set that is arranged."""
        return self.listed.dataset

    @property
    def name(self) -> str:
        """Name of the set."""
        return self.listed.dataset.info.name

    def numbers(self, parts: ListedTexts) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the query and the document of each of these texts."""
        return self.query_of[parts.rows], self.document_of[parts.places]

    def lists(self, *pairs: tuple[NDArray[np.int64], NDArray[np.int64]]) -> Lists:
        """Return the documents of each query from pairs of both; what is no document is left out."""
        import numpy as np

        queries, documents = (np.concatenate(side) for side in zip(*pairs, strict=True))
        known = documents >= 0
        return Lists.of_pairs(queries[known], documents[known], len(self.queries))
