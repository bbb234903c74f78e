"""Passages that a sparse or multi-vector retriever found, with their scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from emberge.files import fill_once

from emberge_data.steps.search.nearest import NearestDocuments

if TYPE_CHECKING:
    import numpy as np
    from emberge.encoding import TextSearch
    from numpy.typing import NDArray

    from emberge_data.steps.listed_set import ArrangedSet
    from emberge_data.steps.search.exclusions import Exclusions, Lists


@dataclass(frozen=True, eq=False)
class FoundPassages:
    """The allowed documents with the highest scores of each of n queries, and the scores of the positives.

    `places` and `scores_by_rank` are [n, k], best first, padded with -1 and -inf. Pair i of a query and one
    of its positives is (`queries`[i], `positives`[i]) with `positive_scores`[i]. No score of another pair is
    known.
    """

    places: NDArray[np.int64]
    scores_by_rank: NDArray[np.float32]
    queries: NDArray[np.int64]
    positives: NDArray[np.int64]
    positive_scores: NDArray[np.float32]

    @classmethod
    def kept(cls, folder: Path, find: Callable[[], FoundPassages]) -> FoundPassages:
        """Return the passages stored in `folder`; if there are none yet, find and store them."""
        import numpy as np

        names = [field.name for field in fields(cls)]

        def write(side: Path) -> None:
            found = find()
            for name in names:
                np.save(side / f"{name}.npy", getattr(found, name))

        fill_once(folder, write)
        return cls(**{name: np.load(folder / f"{name}.npy") for name in names})

    def nearest(self, queries: NDArray[np.int64], count: int) -> NearestDocuments:
        """Return the first `count` found documents of these queries."""
        import numpy as np

        scores = self.scores_by_rank[queries, :count].astype(np.float64)
        return NearestDocuments(self.places[queries, :count], scores)

    def scores(
        self, queries: NDArray[np.int64], documents: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the scores of queries [n] with found documents or positives, [n] or [n, k].

        Raises:
            KeyError: if a document is neither found for its query nor a positive of it.
        """
        import numpy as np

        keys, scores = self._scored_pairs
        wanted = _pair_keys(queries[:, None] if documents.ndim == 2 else queries, documents)
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        if not (keys[at] == wanted).all():
            raise KeyError("scores of pairs that were not found")
        return scores[at]

    @cached_property
    def _scored_pairs(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Keys of all pairs with a score, sorted, and their scores."""
        import numpy as np

        rows, columns = np.nonzero(self.places >= 0)
        keys = np.concatenate(
            [
                _pair_keys(rows, self.places[rows, columns]),
                _pair_keys(self.queries, self.positives),
            ]
        )
        scores = np.concatenate([self.scores_by_rank[rows, columns], self.positive_scores])
        order = np.argsort(keys, kind="stable")
        return keys[order], scores[order].astype(np.float64)


def _pair_keys(queries: NDArray[np.int64], documents: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a number for each pair; documents are fewer than 2^32."""
    return (queries << 32) + documents


def find_passages(
    search: TextSearch,
    arranged: ArrangedSet,
    count: int,
    *,
    positives: Lists,
    excluded: Exclusions,
    prompts: tuple[str, str],
    show_progress: Callable[[int, int], None],
) -> FoundPassages:
    """Find the `count` documents of each query of a set by a search's own similarity, without the excluded.

    The scores of `positives`, the documents of each query, are kept too. `prompts` are those of queries and
    of documents. Of equal scores the earlier document comes first.
    """
    import numpy as np
    import torch
    from emberge.encoding import BestDocuments

    query_prompt, document_prompt = prompts
    asked = search.embed_queries(arranged.queries[:], prompt=query_prompt)
    total = len(arranged.documents)
    everyone = np.arange(len(arranged.queries))
    queries, own = positives.pairs(everyone)
    positive_scores = np.empty(len(queries), np.float32)
    best = BestDocuments(len(arranged.queries), count)
    for first in range(0, total, asked.documents_at_once):
        piece = slice(first, min(first + asked.documents_at_once, total))
        scores = search.score(asked, arranged.documents[piece], prompt=document_prompt)
        in_piece = (own >= piece.start) & (own < piece.stop)
        positive_scores[in_piece] = scores[queries[in_piece], own[in_piece] - first]
        excluded.fill(torch.from_numpy(scores), everyone, first, -torch.inf)
        best.add(scores)
        show_progress(piece.stop, total)
    places = np.where(np.isneginf(best.scores), -1, best.places)
    return FoundPassages(places, best.scores, queries, own, positive_scores)
