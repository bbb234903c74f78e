"""The `deduplicate` step: it keeps only the first of several rows that repeat one another."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from emberge import (
    Artifact,
    NumberRange,
    PositiveShare,
    Preflight,
    Problem,
    RecipeError,
    Requires,
    Workspace,
    suggest,
)

from emberge_data.steps.data_step import DataStep
from emberge_data.steps.deduplicate.units import Of
from emberge_data.steps.outcome import Outcome, drop_lonely
from emberge_data.steps.teacher import Teacher

if TYPE_CHECKING:
    import numpy as np
    from emberge import Example
    from emberge.data import StoredDataset
    from numpy.typing import NDArray

    from emberge_data.steps.deduplicate.cosine_copies import RowVectors
    from emberge_data.steps.deduplicate.units import RowsInOrder


@dataclass(frozen=True, kw_only=True)
class Deduplicate(DataStep):
    """Training sets without the rows that repeat an earlier row, within a set and across sets.

    Texts are compared without case, punctuation, white space and differences in Unicode's ways of writing
    (NFKC; Lee et al., 2022, arXiv:2107.06499). With `jaccard` a row is also dropped if it is nearly a copy:
    the share of runs of `shingle` characters that its text and another one have in common is `jaccard` or
    more. Candidates are found by MinHash with 128 hashes, which misses at most 1 % of the pairs at the
    threshold and far fewer above it. Each candidate is then compared exactly. A row is only dropped as a copy
    of a row that is kept.

    With a `teacher` a row is also dropped if it means the same as an earlier row: the cosine of the two
    anchors is `cosine` or more, and so is that of each positive with some positive of the earlier row
    (SemDeDup, Abbas et al., 2023, arXiv:2303.09540). All pairs of rows are compared, in blocks, with exact
    cosines near the threshold; the time grows with the square of the number of rows.

    The option `of` chooses the part of a row that is compared:

    - `rows`: anchor with anchor and positives with positives, so that two questions on one passage are both
      kept; in symmetric sets in either order. Rows with a label are compared by their anchors, if their
      labels are equal.
    - `anchors`: the anchor alone. If a question has two answers in two rows, one of the rows is dropped.
    - `texts`: a row is dropped if any of its texts is an anchor or a positive of an earlier row.

    Negatives are not compared, as sets repeat them on purpose.

    Example:
        unique:
          deduplicate:
            data: ./datasets.yaml
            jaccard: 0.8
            prefer: [squad, medquad]
    """

    every_rank: ClassVar[bool] = True

    of: Of = "rows"
    """Part of a row that is compared with other rows."""
    jaccard: PositiveShare | None = None
    """Smallest similarity, 0 to 1, at which texts are copies; by default only equal texts are copies."""
    shingle: Annotated[int, NumberRange(least=1, most=64), Requires("jaccard")] = 4
    """Number of characters in the runs that `jaccard` compares."""
    teacher: Teacher | None = None
    """Encoder whose cosines find rows that mean the same."""
    cosine: Annotated[PositiveShare, Requires("teacher")] = 0.95
    """Smallest cosine, by the teacher's embeddings, at which two texts mean the same."""
    across: bool = True
    """Compare rows of different sets as well."""
    prefer: tuple[str, ...] = ()
    """Sets whose rows are kept rather than copies in others, in this order; the rest follow as in `data`."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        problems, checked = self.checked_data(context)
        yield from problems
        yield from self._check_teacher(context)
        if checked.heads and not problems:
            names = [head.info.name for head in checked.heads]
            yield from (context.problem(fault, "prefer") for fault in self._check_preferred(names))

    def _check_teacher(self, context: Preflight) -> Iterator[Problem]:
        if self.teacher is None:
            return
        yield from self.teacher.check(context, "teacher")
        if self.of == "texts":
            yield context.problem("a teacher compares rows or anchors, not texts", "of")

    def _check_preferred(self, names: Sequence[str]) -> Iterator[str]:
        for number, name in enumerate(self.prefer):
            if name in self.prefer[:number]:
                yield f"set '{name}' is preferred twice; once is enough"
            elif name not in names:
                hint = suggest(name, names) or f"; there are {', '.join(names)}"
                yield f"there is no set '{name}' to prefer{hint}"

    def run(self, workspace: Workspace) -> Artifact:
        from emberge.ranks import join_ranks

        from emberge_data.steps.deduplicate.units import RowsInOrder

        datasets = self.load(workspace)
        for fault in self._check_preferred([dataset.info.name for dataset in datasets]):
            raise RecipeError(fault)
        rank_by_name = {name: number for number, name in enumerate(self.prefer)}
        ordered = sorted(
            datasets, key=lambda stored: rank_by_name.get(stored.info.name, len(rank_by_name))
        )
        rows = RowsInOrder(ordered, self.of, across=self.across)
        vectors = self._embed_rows(ordered, workspace)
        if not join_ranks(workspace.machine.device).is_first:
            return Artifact(kind="data")
        copies = self._find_copies(rows, vectors, workspace)
        starts = dict(zip([stored.info.name for stored in ordered], rows.starts, strict=False))

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

    def _embed_rows(
        self, datasets: Sequence[StoredDataset], workspace: Workspace
    ) -> RowVectors | None:
        """Return the vectors of all rows, embedded by all ranks; None without a teacher."""
        from emberge_data.steps.deduplicate.cosine_copies import embed_rows

        if self.teacher is None:
            return None
        return embed_rows(datasets, self.teacher, workspace, positives=self.of == "rows")

    def _find_copies(
        self, rows: RowsInOrder, vectors: RowVectors | None, workspace: Workspace
    ) -> _Copies:
        """Return all copies; each kind of search skips the copies that earlier kinds have found."""
        from emberge_data.steps.deduplicate.text_copies import equal_copies, near_copies

        copies = _Copies(rows)
        folder = workspace.work / "keys"
        workspace.progress(0, 0, note="equal rows")
        copies.add("equal to", equal_copies(rows, copies.kept, folder))
        if self.jaccard is not None:
            workspace.progress(0, 0, note="near copies")
            near = near_copies(rows, copies.kept, folder, threshold=self.jaccard, size=self.shingle)
            copies.add("nearly", near)
        if vectors is not None:
            from emberge_data.steps.deduplicate.cosine_copies import cosine_copies

            workspace.progress(0, 0, note="rows of one meaning")
            device = workspace.machine.device
            copies.add(
                "means the same as", cosine_copies(rows, copies.kept, vectors, self.cosine, device)
            )
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
