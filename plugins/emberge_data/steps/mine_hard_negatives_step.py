"""The `mine_hard_negatives` step: negatives for every query among the passages nearest to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from emberge import Count, DataError, DataRef, Preflight, Problem, Reader, Share, Workspace

from emberge_data.steps.compared_set import NO_TEXT, ComparedSet, list_rows
from emberge_data.steps.outcome import Outcome
from emberge_data.steps.teacher import TaughtStep

if TYPE_CHECKING:
    import numpy as np
    from emberge.data import StoredDataset
    from numpy.typing import NDArray

    from emberge_data.steps.compared_set import Numbers
    from emberge_data.steps.similarity import Excluded, VectorSimilarity


@dataclass(frozen=True, kw_only=True)
class MineHardNegatives(TaughtStep):
    """Hard negatives: the passages nearest to each query by cosine, without its positives.

    A passage that is very near to a query may be a positive that nobody has marked. So with a `margin` of
    0.95 no negative has a score above 95 % of the lowest score of the query's positives, by the same teacher
    (NV-Retriever, 2024, arXiv:2407.15831, "TopK-PercPos"; Nomic Embed v2, 2025, arXiv:2502.07972). If the
    lowest score s is negative, the threshold is s - (1 - margin) |s|.

    Passages are the positives and negatives of the set's rows, each text once; with a `corpus`, its texts and
    the positives of the rows. Mined negatives replace those of a row. Rows with the same anchor are one
    query. A query never gets one of its positives or itself. In a set with labels it never gets a text of a
    row with the same label either, even if that text has another label in another row; negatives of such rows
    have no label of their own, and do not count as passages.

    `changes.md` has the number of negatives, and the scores of negatives and positives.

    Example:
        mined:
          mine_hard_negatives:
            data: ./pairs.jsonl
            teacher: sentence-transformers/all-MiniLM-L6-v2
            count: 10
    """

    count: Count = 10
    """Number of negatives to mine for a query."""
    margin: Share | None = 0.95
    """Largest score of a negative as a share of the lowest positive's, 0 to 1; null for no limit."""
    range: tuple[Count, Count] | None = None
    """First and last rank, from 1, of candidates among the passages that a query may get; by default all.

    Ranks are counted before the threshold is applied.
    """
    corpus: tuple[DataRef, ...] = ()
    """Files of passages: rows with `text`, and optionally `title` and `_id`."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        yield from super().check(context)
        first, last = self.range or (1, self.count)
        if last - first + 1 < self.count:
            yield context.problem(
                f"range [{first}, {last}] has fewer ranks than count ({self.count})", "range"
            )
        for reference in self.corpus:
            path = context.data(reference)
            if path is not None and not path.is_file():
                yield context.problem(f"{reference}: there is no such file of passages", "corpus")

    def list_texts(self, dataset: StoredDataset, workspace: Workspace) -> ComparedSet:
        paths = [workspace.data(reference) for reference in self.corpus]
        has_labels = any(example.label is not None for example in list_rows(dataset))
        return ComparedSet.of(
            dataset,
            workspace,
            negatives=not self.corpus and not has_labels,
            corpus=read_corpora(paths, workspace.readers),
        )

    def judge(
        self, compared: ComparedSet, similarity: VectorSimilarity, workspace: Workspace
    ) -> Generator[Outcome, None, str]:
        from emberge_data.steps.similarity import describe_spread, find_lowest_scores

        positives = compared.positives
        positive_scores = similarity.score(positives.queries, positives.documents)
        lowest = find_lowest_scores(positives, positive_scores, len(compared.queries))
        documents, scores, is_negative = self._choose_negatives(
            compared, similarity, lowest, workspace
        )
        if not is_negative.any():
            raise DataError(
                f"dataset '{compared.name}': no passage passes for any query ({self.teacher.model} scores "
                f"the lowest positives {describe_spread(lowest)}); raise margin ({self.margin}), widen "
                "range, or name a corpus"
            )
        yield from self._list_outcomes(compared, documents, is_negative)
        return (
            f"{compared.name}: {is_negative.sum():,} negatives for {is_negative.any(axis=1).sum():,} of "
            f"{len(compared.queries):,} queries, which score {describe_spread(scores[is_negative])}; the "
            f"lowest positives score {describe_spread(lowest)}."
        )

    def _choose_negatives(
        self,
        compared: ComparedSet,
        similarity: VectorSimilarity,
        lowest: NDArray[np.float32],
        workspace: Workspace,
    ) -> tuple[Numbers, NDArray[np.float32], NDArray[np.bool_]]:
        """Return each query's candidates, their scores, and a mask of the negatives, [queries, candidates].

        `lowest` [queries] are the lowest scores of each query's positives.
        """
        import numpy as np

        from emberge_data.steps.similarity import find_best, find_thresholds

        size = len(compared.queries), len(compared.documents)
        ceilings = None if self.margin is None else find_thresholds(lowest, self.margin)
        first, last = self.range or (1, self.count)
        documents, scores = find_best(
            similarity,
            _build_exclusion(compared),
            size=size,
            count=min(last, size[1]),
            ceilings=ceilings if self.range is None else None,
            show_progress=lambda done, total: workspace.progress(done, total, "queries"),
        )
        documents, scores = documents[:, first - 1 :], scores[:, first - 1 :]
        passes = documents != NO_TEXT
        if ceilings is not None:
            passes &= scores <= ceilings[:, None]
        return documents, scores, passes & (np.cumsum(passes, axis=1) <= self.count)

    def _list_outcomes(
        self, compared: ComparedSet, documents: Numbers, is_negative: NDArray[np.bool_]
    ) -> Iterator[Outcome]:
        shortage = "no negative" if self.count == 1 else f"fewer than {self.count} negatives"
        for row, example in enumerate(list_rows(compared.dataset)):
            query = compared.anchors.queries[row]
            places = documents[query][is_negative[query]]
            texts = [compared.documents[int(place)] for place in places]
            note = shortage if len(texts) < self.count else "negatives mined"
            after = dataclasses.replace(example, negatives=tuple(texts), negative_scores=None)
            yield Outcome(row, example, after, note)


def _build_exclusion(compared: ComparedSet) -> Excluded:
    """Return a function that lists the documents in a tile which its queries must not get.

    They are the query itself, its positives, and all texts of rows that have a label of one of its rows.
    """
    import numpy as np

    anchors, positives = compared.anchors, compared.positives
    size = len(compared.queries), len(compared.documents)
    excluded = _build_mask(
        np.concatenate([anchors.queries, positives.queries]),
        np.concatenate([anchors.documents, positives.documents]),
        size,
    )
    names = {label: number for number, label in enumerate({*compared.labels} - {None})}
    if not names:
        return lambda rows, columns: excluded[rows][:, columns].nonzero()
    label_of = np.array([names.get(label, NO_TEXT) for label in compared.labels])
    of_query = _build_mask(anchors.queries, label_of[anchors.rows], (size[0], len(names)))
    of_document = _build_mask(
        np.concatenate([label_of[anchors.rows], label_of[positives.rows]]),
        np.concatenate([anchors.documents, positives.documents]),
        (len(names), size[1]),
    )

    def list_excluded(rows: slice, columns: slice) -> tuple[Numbers, Numbers]:
        same_label = of_query[rows] @ of_document[:, columns]
        listed: tuple[Numbers, Numbers] = (excluded[rows][:, columns] + same_label).nonzero()
        return listed

    return list_excluded


def _build_mask(rows: Numbers, columns: Numbers, size: tuple[int, int]) -> Any:
    """Return a sparse matrix that is true at these rows and columns, except where a number is NO_TEXT."""
    import numpy as np
    from scipy.sparse import csr_array

    is_place = (rows != NO_TEXT) & (columns != NO_TEXT)
    return csr_array(
        (np.ones(is_place.sum(), dtype=bool), (rows[is_place], columns[is_place])), shape=size
    )


def read_corpora(paths: Sequence[Path], readers: Sequence[Reader]) -> Iterator[str]:
    """Yield the passages of files in the layout of BEIR: `text`, after a `title` if there is one.

    Raises:
        DataError: if a row has no text.
    """
    from emberge_data.document_rows import read_document_rows

    for path in paths:
        yield from (row.join() for row in read_document_rows(path, readers))
