"""The `split` step: parts for choices and for tests that share no text, document or class with training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from emberge import (
    Artifact,
    Count,
    DataError,
    NumberRange,
    PositiveShare,
    Preflight,
    Problem,
    WholeNumber,
    Workspace,
)

from emberge_data.steps.data_step import DataStep
from emberge_data.steps.split_parts import (
    DEV,
    NOUN_BY_PART,
    TEST,
    TRAIN,
    SplitParts,
    choose_rows,
    group_rows,
)
from emberge_data.steps.text_similarity import SHINGLE

if TYPE_CHECKING:
    import numpy as np
    from emberge.contracts import Split as PartName
    from emberge.data import StoredDataset
    from numpy.typing import NDArray

    from emberge_data.steps.row_texts import RowTexts

    Numbers = NDArray[np.int64]


DEV_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class Split(DataStep):
    """Training sets in parts: one to train on, one for choosing settings, one to test on.

    The result names the training part, `data: $parts`; its development part is the same sets under
    `data: {path: $parts, split: dev}`. With `test` there is a third part, `{path: $parts, split: test}`,
    which an evaluator scores: every anchor is a query, and the part's positives and negatives are searched.

    Groups of rows are never divided between the parts, so that the other parts never ask for a text of the
    training part (Lewis et al., 2021, arXiv:2008.02637, found most answers of tests in training sets). Rows
    of one set or of two sets are in one group if they have an anchor or a positive in common; texts are
    compared without case, punctuation and white space. With `jaccard`, rows are in one group too if an anchor
    or a positive of one is nearly a copy of one of the other, by the measure of the step `deduplicate`.

    Negatives do not join groups, as a few very frequent ones would join nearly all rows. Instead, a negative
    that is an anchor or a positive of another part is removed from its row, in all parts.

    Groups are taken in a random order that depends on `seed`. A group with more rows than a part still lacks
    is skipped, so that no part has more rows than requested. The development part is the same with and
    without a test part.

    Example:
        parts:
          split:
            data: ./datasets.yaml
            share: 0.05
            test: 0.1
            jaccard: 0.6
    """

    share: Annotated[float, NumberRange(above=0, below=1)] | None = None
    """Share of each set's rows for development; by default 0.1."""
    rows: Count | None = None
    """Rows of each set for development, instead of a share."""
    test: Annotated[float, NumberRange(above=0, below=1)] | Count | None = None
    """Share of each set's rows for tests, or their number if it is 1 or more; by default no test part."""
    jaccard: PositiveShare | None = None
    """Smallest similarity, 0 to 1, at which near copies are in one part; by default only equal texts are."""
    seed: WholeNumber | None = None
    """Seed of the choice; by default the recipe's."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        yield from super().check(context)
        if self.share is not None and self.rows is not None:
            yield context.problem("share and rows both set the size; keep one", "rows")

    @property
    def expected_splits(self) -> tuple[PartName, ...]:
        """The development part, and a test part if there is one."""
        return ("dev",) if self.test is None else ("dev", "test")

    def run(self, workspace: Workspace) -> Artifact:
        import numpy as np

        from emberge_data.steps.row_texts import RowTexts

        datasets = self.load(workspace)
        wanted = [self._count_wanted(dataset) for dataset in datasets]
        texts = RowTexts(datasets, workspace.work)
        groups = self._group_rows(texts, workspace)
        part_of_row = np.zeros(len(texts), dtype=np.int64)
        for part, name in ((DEV, "split"), (TEST, "split test")):
            limits = [counts.get(part, 0) for counts in wanted]
            is_free = part_of_row == TRAIN
            chosen = choose_rows(groups, texts.set_of_row, limits, workspace.seed, name, is_free)
            part_of_row[chosen] = part
        parts = SplitParts(texts, part_of_row)
        for number, dataset in enumerate(datasets):
            of_set = texts.set_of_row == number
            for part in wanted[number]:
                if not (part_of_row[of_set] == part).any():
                    raise DataError(_describe_groups(dataset, part, groups[of_set]))
        return self.finish(
            workspace,
            ((dataset, partial(parts.list_outcomes, dataset)) for dataset in datasets),
            dev=((dataset, parts.read_examples(dataset, DEV)) for dataset in datasets),
            test=(
                (dataset, parts.read_examples(dataset, TEST)) for dataset in datasets if self.test
            ),
        )

    def _group_rows(self, texts: RowTexts, workspace: Workspace) -> Numbers:
        """Return each row's group [rows]."""
        import numpy as np

        from emberge_data.steps.text_copies import join_near_copies
        from emberge_data.steps.text_similarity import ComparedTexts

        rows, own_texts = texts.list_own_texts()
        if self.jaccard is not None:
            workspace.progress(0, 0, note="near copies")
            numbers, places = np.unique(own_texts, return_inverse=True)
            first_copies = join_near_copies(
                lambda number: ComparedTexts("", (texts.distinct[number],)),
                numbers,
                workspace.work / "keys",
                threshold=self.jaccard,
                size=SHINGLE,
            )
            own_texts = first_copies[places]
        return group_rows(len(texts), rows, own_texts)

    def _count_wanted(self, dataset: StoredDataset) -> dict[int, int]:
        """Return the largest number of a set's rows in each part that is not for training."""
        share = DEV_SHARE if self.share is None else self.share
        size = len(dataset)
        wanted = {DEV: self.rows if self.rows is not None else max(1, round(share * size))}
        if self.test is not None:
            is_share = isinstance(self.test, float)
            wanted[TEST] = max(1, round(self.test * size)) if is_share else int(self.test)
        if sum(wanted.values()) >= size:
            listed = " and ".join(
                f"{count:,} for {NOUN_BY_PART[part]}" for part, count in wanted.items()
            )
            raise DataError(
                f"{dataset.info.name} has {size:,} rows, so {listed} leave none to train on; ask for fewer"
            )
        return wanted


def _describe_groups(dataset: StoredDataset, part: int, groups: Numbers) -> str:
    """Return why no row of a set could be taken for a part."""
    import numpy as np

    _, sizes = np.unique(groups, return_counts=True)
    noun, smallest = NOUN_BY_PART[part], sizes.min()
    return (
        f"{dataset.info.name}: rows that share texts stay together, and no group of them is small enough "
        f"for the {noun} part (the smallest has {smallest:,} of {len(dataset):,} rows); ask for more rows, "
        f"or give the set a {noun} file of its own"
    )
