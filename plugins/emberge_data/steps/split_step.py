"""The `split` step: parts for choices and for tests that share no text, document or class with training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    shuffled,
    stable_seed,
)
from emberge.data import describe_small_set
from emberge.wording import count_noun

from emberge_data.steps.data_step import DataStep
from emberge_data.steps.outcome import Outcome, drop_lonely, drop_negatives
from emberge_data.steps.text_similarity import SHINGLE

if TYPE_CHECKING:
    import numpy as np
    from emberge import Example
    from emberge.contracts import Split as Half
    from emberge.data import StoredDataset
    from numpy.typing import NDArray

    from emberge_data.steps.row_texts import RowTexts

    Numbers = NDArray[np.int64]


SHARE = 0.1
TRAIN, DEV, TEST = range(3)
_NOUNS = {TRAIN: "training", DEV: "development", TEST: "test"}


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
        problems, _ = self.checked_data(context)
        yield from problems
        if self.share is not None and self.rows is not None:
            yield context.problem("share and rows both set the size; keep one", "rows")
        if self.test is not None and self.test >= 1:
            small_set = describe_small_set("test", int(self.test), "row")
            if small_set is not None:
                yield context.warning(small_set, "test")

    @property
    def expected_parts(self) -> tuple[Half, ...]:
        """The development part, and a test part if there is one."""
        return ("dev",) if self.test is None else ("dev", "test")

    def run(self, workspace: Workspace) -> Artifact:
        from emberge_data.steps.row_texts import RowTexts

        datasets = self.load(workspace)
        wanted_counts = [self._count_wanted(dataset) for dataset in datasets]
        texts = RowTexts(datasets, workspace.work)
        links = texts.own()
        groups = group_rows(len(texts), *links)
        grouping = {"groups": int(groups.max()) + 1}
        if self.jaccard is not None:
            groups = self._join_near_copies(texts, *links, workspace)
            joined_count = int(groups.max()) + 1
            grouping = {"groups": joined_count, "joined": grouping["groups"] - joined_count}
        parts = _Parts(texts, self._choose_parts(groups, texts, wanted_counts, workspace.seed))
        for number, dataset in enumerate(datasets):
            self._require_parts(
                parts, dataset, wanted_counts[number], groups[texts.set_of_row == number], workspace
            )
        chosen_parts = [DEV, TEST] if self.test is not None else [DEV]
        return self.finish(
            workspace,
            (
                (dataset, drop_lonely(dataset, partial(parts.train, dataset)))
                for dataset in datasets
            ),
            {
                **{
                    _NOUNS[part]: {one.info.name: parts.count(one, part) for one in datasets}
                    for part in chosen_parts
                },
                **grouping,
            },
            dev=((dataset, parts.examples(dataset, DEV)) for dataset in datasets),
            test=((dataset, parts.examples(dataset, TEST)) for dataset in datasets if self.test),
            notes=self._describe_groups(**grouping),
        )

    def _describe_groups(self, groups: int, joined: int | None = None) -> list[str]:
        """Return the number of groups, and how many near copies joined to others, for the table."""
        if not joined:
            copies = (
                "" if joined is None else f"; no near copies (Jaccard {self.jaccard:g} or more)"
            )
            return [f"{count_noun(groups, 'group')} of rows that share texts{copies}."]
        return [
            f"{count_noun(groups + joined, 'group')} of rows that share texts; near copies (Jaccard "
            f"{self.jaccard:g} or more) joined {joined:,} of them to others, which leaves {groups:,}."
        ]

    def _choose_parts(
        self,
        groups: Numbers,
        texts: RowTexts,
        wanted_counts: Sequence[Mapping[int, int]],
        seed: int,
    ) -> Numbers:
        """Return the part of each row [rows]: TRAIN, DEV or TEST."""
        import numpy as np

        part_of_row = np.zeros(len(texts), dtype=np.int64)
        for part, name in ((DEV, "split"), (TEST, "split test")):
            limits = [wanted.get(part, 0) for wanted in wanted_counts]
            is_free = part_of_row == TRAIN
            is_chosen = choose_rows(groups, texts.set_of_row, limits, seed, name, is_free)
            part_of_row[is_chosen] = part
        return part_of_row

    def _require_parts(
        self,
        parts: _Parts,
        dataset: StoredDataset,
        wanted: Mapping[int, int],
        groups: Numbers,
        workspace: Workspace,
    ) -> None:
        """Warn of a part of a set with too few rows.

        Raises:
            DataError: if a part has no row.
        """
        name = dataset.info.name
        for part, wanted_count in wanted.items():
            count = parts.count(dataset, part)
            if not count:
                raise DataError(_explain_too_large(dataset, groups, _NOUNS[part]))
            if count < wanted_count / 2:
                workspace.warn(
                    f"{name}: the {_NOUNS[part]} part has {count:,} of {wanted_count:,} rows, as other "
                    "groups of rows that share texts are too large"
                )
            small_set = describe_small_set(name, count, "row") if part == TEST else None
            if small_set is not None:
                workspace.warn(f"the test part: {small_set}")

    def _count_wanted(self, dataset: StoredDataset) -> dict[int, int]:
        """Return the largest number of a set's rows in each part that is not for training.

        Raises:
            DataError: if these numbers leave no row to train on.
        """
        share = SHARE if self.share is None else self.share
        size = len(dataset)
        wanted = {DEV: self.rows if self.rows is not None else max(1, round(share * size))}
        if self.test is not None:
            is_share = isinstance(self.test, float)
            wanted[TEST] = max(1, round(self.test * size)) if is_share else int(self.test)
        if sum(wanted.values()) >= size:
            listed = " and ".join(f"{count:,} for {_NOUNS[part]}" for part, count in wanted.items())
            raise DataError(
                f"{dataset.info.name} has {size:,} rows, so {listed} leave none to train on; ask for fewer"
            )
        return wanted

    def _join_near_copies(
        self, texts: RowTexts, rows: Numbers, own_texts: Numbers, workspace: Workspace
    ) -> Numbers:
        """Return each row's group [rows] after near copies are counted as one text."""
        import numpy as np

        from emberge_data.steps.text_copies import join_near_texts

        workspace.progress(0, 0, note="near copies")
        assert self.jaccard is not None
        first_copies = join_near_texts(
            texts.distinct,
            np.unique(texts.own()[1]),
            workspace.work / "keys",
            threshold=self.jaccard,
            size=SHINGLE,
        )
        return group_rows(len(texts), rows, first_copies[own_texts])


class _Parts:
    """Rows of all parts, without negatives that are an anchor or a positive of another part."""

    def __init__(self, texts: RowTexts, part_of_row: Numbers) -> None:
        import numpy as np

        self._texts = texts
        self._part_of_row = part_of_row
        rows, own_texts = texts.own()
        self._part_of_text = np.full(len(texts.distinct), -1)  # of texts that are negatives only
        self._part_of_text[own_texts] = part_of_row[rows]

    def count(self, dataset: StoredDataset, part: int) -> int:
        """Return how many rows of a set are in a part."""
        start = self._texts.starts[dataset.info.name]
        return int((self._part_of_row[start : start + len(dataset)] == part).sum())

    def train(self, dataset: StoredDataset) -> Iterator[Outcome]:
        """Yield the outcomes of all rows for the training part."""
        start = self._texts.starts[dataset.info.name]
        for row in range(len(dataset)):
            example = dataset[row]
            part = int(self._part_of_row[start + row])
            if part != TRAIN:
                yield Outcome(row, example, None, f"in the {_NOUNS[part]} part")
            else:
                after = self._drop_shared_negatives(example, start + row)
                yield Outcome(row, example, after, "a negative is in another part")

    def examples(self, dataset: StoredDataset, part: int) -> Iterator[Example]:
        """Yield the rows of one of the other parts."""
        outcomes = drop_lonely(dataset, partial(self._yield_outcomes, dataset, part))
        return (outcome.after for outcome in outcomes if outcome.after is not None)

    def _yield_outcomes(self, dataset: StoredDataset, part: int) -> Iterator[Outcome]:
        start = self._texts.starts[dataset.info.name]
        for row in range(len(dataset)):
            if self._part_of_row[start + row] == part:
                example = dataset[row]
                yield Outcome(row, example, self._drop_shared_negatives(example, start + row))

    def _drop_shared_negatives(self, example: Example, row: int) -> Example:
        _, negatives = self._texts.of_row(row)
        foreign_places = [
            number
            for number, text in enumerate(negatives)
            if self._part_of_text[text] not in (-1, self._part_of_row[row])
        ]
        return drop_negatives(example, foreign_places) if foreign_places else example


def _explain_too_large(dataset: StoredDataset, groups: Numbers, part: str) -> str:
    import numpy as np

    _, sizes = np.unique(groups, return_counts=True)
    return (
        f"{dataset.info.name}: no group of rows that share texts is small enough for the "
        f"{part} part; its {len(sizes):,} groups have {sizes.min():,} to {sizes.max():,} of "
        f"{len(dataset):,} rows; ask for more rows, or give the set a {part} file of its own"
    )


def group_rows(count: int, rows: Numbers, texts: Numbers) -> Numbers:
    """Return each row's group number [count]; rows that share a text are in one group.

    Row `rows[i]` has the text `texts[i]`. Groups are numbered in the order of their first rows.
    """
    import numpy as np
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    size = count + (int(texts.max()) + 1 if len(texts) else 0)
    edges = coo_array((np.ones(len(rows), np.int8), (rows, texts + count)), shape=(size, size))
    _, components = connected_components(edges, directed=False)
    _, first, groups = np.unique(components[:count], return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[groups]


def choose_rows(
    groups: Numbers,
    sets: Numbers,
    limits: Sequence[int],
    seed: int,
    name: str = "split",
    is_free: NDArray[np.bool_] | None = None,
) -> NDArray[np.bool_]:
    """Return the mask of rows in randomly chosen whole groups, with at most `limits` rows of each set.

    Groups are taken in random order, which depends on `seed` and `name`. A group is skipped if it has more
    rows of any set than that set's limit still allows, or rows that are not free.
    """
    import numpy as np

    order = np.argsort(groups, kind="stable")
    count = int(groups.max()) + 1
    ends = np.cumsum(np.bincount(groups, minlength=count))
    rows_left = np.array(limits)
    is_chosen = np.zeros(len(groups), dtype=bool)
    for group in shuffled(count, stable_seed(name, seed)).tolist():
        rows = order[ends[group - 1] if group else 0 : ends[group]]
        needed = np.bincount(sets[rows], minlength=len(rows_left))
        if (is_free is None or is_free[rows].all()) and (needed <= rows_left).all():
            rows_left -= needed
            is_chosen[rows] = True
            if not rows_left.any():
                break
    return is_chosen
