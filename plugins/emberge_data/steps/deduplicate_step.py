"""The `deduplicate` step: it keeps only the first of several rows that repeat one another."""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import Artifact, Example, PositiveShare, Workspace

from emberge_data.steps.data_step import DataStep
from emberge_data.steps.outcome import Outcome
from emberge_data.steps.text_similarity import SHINGLE, ComparedTexts, normalise

if TYPE_CHECKING:
    import numpy as np
    from emberge.data import StoredDataset
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Deduplicate(DataStep):
    """Training sets without the rows that repeat an earlier row, within a set and across sets.

    Texts are compared without case, punctuation, white space and differences in Unicode's ways of writing
    (NFKC; Lee et al., 2022, arXiv:2107.06499). With `jaccard` a row is also dropped if it is nearly a copy:
    the share of runs of four characters that its text and another one have in common is `jaccard` or
    more. Candidates are found by MinHash with 128 hashes, which misses at most 1 % of the pairs at the
    threshold and far fewer above it. Each candidate is then compared exactly. Of rows that are joined by a
    sequence of such pairs, the first is kept.

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

    def run(self, workspace: Workspace) -> Artifact:
        from emberge_data.steps.text_copies import join_near_copies

        datasets = self.load(workspace)
        rows = RowsInOrder(datasets)
        workspace.progress(0, 0, note="equal rows")
        earlier = rows.find_equal()
        near: dict[int, int] = {}
        if self.jaccard is not None:
            workspace.progress(0, 0, note="near copies")
            kept = (earlier < 0).nonzero()[0]
            folder = workspace.work / "keys"
            first = join_near_copies(rows.texts, kept, folder, threshold=self.jaccard, size=SHINGLE)
            pairs = zip(kept.tolist(), first.tolist(), strict=True)
            near = {row: copied for row, copied in pairs if row != copied}

        def judge(number: int, row: int, example: Example) -> Outcome:
            copied = near.get(number, int(earlier[number]))
            if copied < 0:
                return Outcome(row, example, example)
            dataset, place = rows.place(copied)
            note = f"{'nearly' if number in near else 'equal to'} a row of {dataset.info.name}"
            return Outcome(row, example, None, note, f"row {place + 1}: {dataset[place].anchor}")

        def outcomes(dataset: StoredDataset, start: int) -> Iterator[Outcome]:
            return (judge(start + row, row, dataset[row]) for row in range(len(dataset)))

        sets = zip(datasets, rows.starts, strict=False)
        return self.finish(
            workspace, ((one, functools.partial(outcomes, one, start)) for one, start in sets)
        )


def list_compared(dataset: StoredDataset, example: Example) -> ComparedTexts:
    """Return what is compared of a row: anchor and positives, each with the same part of the other row.

    In a symmetric set they are compared in either order. A row with a label is compared by its anchor alone,
    with rows of the same label, as its positives are other rows of that label.
    """
    anchor = normalise(example.anchor)
    positives = () if dataset.draws_positives else example.positives
    if example.label is not None or not positives:
        return ComparedTexts(f"\0{example.label}", (anchor,))
    parts = [anchor, "\n".join(sorted(map(normalise, positives)))]
    return ComparedTexts("", tuple(sorted(parts) if dataset.symmetric else parts))


class RowsInOrder:
    """Rows of all sets under one numbering, in the order in which the first copy is kept."""

    def __init__(self, datasets: Sequence[StoredDataset]) -> None:
        self.datasets = datasets
        self.starts = [0, *itertools.accumulate(len(dataset) for dataset in datasets)]
        self.texts = functools.lru_cache(maxsize=4096)(self._read_texts)

    def __len__(self) -> int:
        return self.starts[-1]

    def place(self, row: int) -> tuple[StoredDataset, int]:
        """Return the set of a row, and the row's index in that set."""
        number = bisect.bisect_right(self.starts, row) - 1
        return self.datasets[number], row - self.starts[number]

    def find_equal(self) -> NDArray[np.int64]:
        """Return for each row the first row that it equals, -1 for that row itself."""
        import numpy as np
        from emberge.hashes import hash_texts

        keys = bytearray()
        for row in range(len(self)):
            texts = self._read_texts(row)
            keys += hash_texts(("\x1f".join((texts.tag, *texts.parts)),))
        _, first, inverse = np.unique(
            np.frombuffer(bytes(keys), "V16"), return_index=True, return_inverse=True
        )
        earlier = first[inverse]
        return np.where(earlier == np.arange(len(self)), -1, earlier)

    def _read_texts(self, row: int) -> ComparedTexts:
        dataset, number = self.place(row)
        return list_compared(dataset, dataset[number])
