"""The `deduplicate` step: it keeps only the first of several rows that repeat one another."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Artifact, PositiveShare, Preflight, Problem, Workspace

from emberge_data.steps.data_step import DataStep
from emberge_data.steps.outcome import Outcome, drop_lonely
from emberge_data.steps.text_similarity import SHINGLE

if TYPE_CHECKING:
    import numpy as np
    from emberge import Example
    from emberge.data import StoredDataset
    from numpy.typing import NDArray

    from emberge_data.steps.deduplicate.units import RowsInOrder


@dataclass(frozen=True, kw_only=True)
class Deduplicate(DataStep):
    """Training sets without the rows that repeat an earlier row, within a set and across sets.

    Texts are compared without case, punctuation, white space and differences in Unicode's ways of writing
    (NFKC; Lee et al., 2022, arXiv:2107.06499). With `jaccard` a row is also dropped if it is nearly a copy:
    the share of runs of four characters that its text and another one have in common is `jaccard` or
    more. Candidates are found by MinHash with 128 hashes, which misses at most 1 % of the pairs at the
    threshold and far fewer above it. Each candidate is then compared exactly. A row is only dropped as a copy
    of a row that is kept.

    Anchors are compared with anchors and positives with positives, so that two questions on one passage are
    both kept; in symmetric sets in either order. Rows with a label are compared by their anchors, if their
    labels are equal.

    Negatives are not compared, as sets repeat them on purpose.

    Example:
        unique:
          deduplicate:
            data: ./datasets.yaml
            jaccard: 0.8
    """

    jaccard: PositiveShare | None = None
    """Smallest similarity, 0 to 1, at which texts are copies; by default only equal texts are copies."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        problems, _ = self.checked_data(context)
        yield from problems

    def run(self, workspace: Workspace) -> Artifact:
        from emberge_data.steps.deduplicate.units import RowsInOrder

        datasets = self.load(workspace)
        rows = RowsInOrder(datasets)
        copies = self._find_copies(rows, workspace)
        starts = dict(zip([stored.info.name for stored in datasets], rows.starts, strict=False))

        def outcomes(dataset: StoredDataset) -> Iterator[Outcome]:
            start = starts[dataset.info.name]
            return (
                copies.outcome(start + row, row, example) for row, example in _number_rows(dataset)
            )

        return self.finish(
            workspace,
            (
                (dataset, drop_lonely(dataset, functools.partial(outcomes, dataset)))
                for dataset in datasets
            ),
        )

    def _find_copies(self, rows: RowsInOrder, workspace: Workspace) -> _Copies:
        """Return all copies; near copies are looked for among the rows that equal no earlier row."""
        from emberge_data.steps.deduplicate.text_copies import equal_copies, near_copies

        copies = _Copies(rows)
        folder = workspace.work / "keys"
        workspace.progress(0, 0, note="equal rows")
        copies.add("equal to", equal_copies(rows, copies.kept, folder))
        if self.jaccard is not None:
            workspace.progress(0, 0, note="near copies")
            near = near_copies(rows, copies.kept, folder, threshold=self.jaccard, size=SHINGLE)
            copies.add("nearly", near)
        return copies


class _Copies:
    """Record of the rows found to be copies, each with the earlier row that it repeats."""

    def __init__(self, rows: RowsInOrder) -> None:
        import numpy as np

        self._rows = rows
        self._earlier = np.full(len(rows), -1, dtype=np.int64)
        self._way = np.zeros(len(rows), dtype=np.int8)
        self._ways: list[str] = []

    @property
    def kept(self) -> NDArray[np.bool_]:
        """Flags of the rows that are not known to be copies."""
        is_kept: NDArray[np.bool_] = self._earlier < 0
        return is_kept

    def add(self, way: str, copies: Iterator[tuple[int, int]]) -> None:
        """Add the (row, earlier row) pairs that one kind of search has found."""
        for row, earlier in copies:
            self._earlier[row], self._way[row] = earlier, len(self._ways)
        self._ways.append(way)

    def outcome(self, number: int, row: int, example: Example) -> Outcome:
        """Return the outcome of a row, given its number over all sets."""
        if self._earlier[number] < 0:
            return Outcome(row, example, example)
        dataset, earlier = self._rows.place(int(self._earlier[number]))
        note = f"{self._ways[self._way[number]]} a row of {dataset.info.name}"
        return Outcome(row, example, None, note, f"row {earlier + 1}: {dataset[earlier].anchor}")


def _number_rows(dataset: StoredDataset) -> Iterator[tuple[int, Example]]:
    """Yield the rows with their numbers."""
    return ((row, dataset[row]) for row in range(len(dataset)))
