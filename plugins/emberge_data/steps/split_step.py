"""The `split` step: a development part that shares no text, document or class with the training part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from emberge import (
    Artifact,
    Count,
    DataError,
    NumberRange,
    Preflight,
    Problem,
    WholeNumber,
    Workspace,
    shuffled,
    stable_seed,
)

from emberge_data.steps.data_step import DataStep
from emberge_data.steps.outcome import Outcome, drop_lonely, drop_negatives

if TYPE_CHECKING:
    import numpy as np
    from emberge import Example
    from emberge.data import StoredDataset
    from numpy.typing import NDArray

    from emberge_data.steps.row_texts import RowTexts

    Numbers = NDArray[np.int64]


SHARE = 0.1
MOVED = "in the development part"


@dataclass(frozen=True, kw_only=True)
class Split(DataStep):
    """Training sets in two parts: one to train on, and one for choosing settings and early stopping.

    The result names the training part, `data: $parts`; its development part is the same sets under
    `data: {path: $parts, split: dev}`.

    Groups of rows are never divided between the parts, so that the development part never asks for a text of
    the training part (Lewis et al., 2021, arXiv:2008.02637, found most answers of tests in training sets).
    Rows of one set or of two sets are in one group if they have an anchor or a positive in common; texts are
    compared without case, punctuation and white space. With `by: labels`, all rows of a set with the same
    label are in one group too, so that the classes of the development part were never trained on.

    Negatives do not join groups, as a few very frequent ones would join nearly all rows. Instead, a negative
    that is an anchor or a positive of the other part is removed from its row, in both parts.

    Groups are taken in a random order that depends on `seed`. A group with more rows than the development
    part still lacks is skipped, so that part never has more rows than requested.

    Example:
        parts:
          split:
            data: ./datasets.yaml
            share: 0.05
    """

    share: Annotated[float, NumberRange(above=0, below=1)] | None = None
    """Share of each set's rows for development; by default 0.1."""
    rows: Count | None = None
    """Rows of each set for development, instead of a share."""
    by: Literal["texts", "labels"] = "texts"
    """Properties that rows of different parts never share."""
    seed: WholeNumber | None = None
    """Seed of the choice; by default the recipe's."""

    def check(self, context: Preflight) -> Iterator[Problem]:
        problems, checked = self.checked_data(context)
        yield from problems
        if self.share is not None and self.rows is not None:
            yield context.problem("share and rows both set the size; keep one", "rows")
        if self.by == "labels":
            for head in checked.heads:
                if head.example.label is None:
                    fault = f"the rows of {head.info.name} have no label; split it by texts"
                    yield context.problem(fault, "by")

    def run(self, workspace: Workspace) -> Artifact:
        from emberge_data.steps.row_texts import RowTexts

        datasets = self.load(workspace)
        wanted_counts = [self._count_wanted(dataset) for dataset in datasets]
        texts = RowTexts(datasets, workspace.work)
        groups = group_rows(len(texts), *self._link_rows(texts, datasets))
        in_development = choose_rows(groups, texts.set_of_row, wanted_counts, workspace.seed)
        parts = _Parts(texts, in_development)
        for number, dataset in enumerate(datasets):
            count = parts.development(dataset)
            if not count and not workspace.rehearsal:
                raise DataError(_explain_too_large(dataset, groups[texts.set_of_row == number]))
            if count < wanted_counts[number] / 2:
                workspace.warn(
                    f"{dataset.info.name}: the development part has {count:,} of {wanted_counts[number]:,} "
                    "rows, as other groups of rows that share texts are too large"
                )
        return self.finish(
            workspace,
            (
                (dataset, drop_lonely(dataset, partial(parts.train, dataset)))
                for dataset in datasets
            ),
            {"development": {stored.info.name: parts.development(stored) for stored in datasets}},
            dev=((dataset, parts.dev_examples(dataset)) for dataset in datasets),
        )

    def _count_wanted(self, dataset: StoredDataset) -> int:
        """Return the largest number of a set's rows in the development part.

        Raises:
            DataError: if this number leaves no row to train on.
        """
        share = SHARE if self.share is None else self.share
        count = self.rows if self.rows is not None else max(1, round(share * len(dataset)))
        if count >= len(dataset):
            raise DataError(
                f"{dataset.info.name} has {len(dataset):,} rows, so {count:,} for development leave none to "
                "train on; ask for fewer"
            )
        return count

    def _link_rows(
        self, texts: RowTexts, datasets: Sequence[StoredDataset]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (rows, things): row indices and the texts or labels by which these rows are grouped."""
        import numpy as np

        rows, shared_items = texts.own()
        if self.by == "texts":
            return rows, shared_items
        places: dict[tuple[str, str | None], int] = {}
        labels = [
            places.setdefault((dataset.info.name, dataset[row].label), len(places))
            for dataset in datasets
            for row in range(len(dataset))
        ]
        more = np.array(labels, dtype=np.int64) + len(texts.distinct)
        return np.concatenate([rows, np.arange(len(texts))]), np.concatenate([shared_items, more])


class _Parts:
    """Rows of both parts, without negatives that are an anchor or a positive of the other part."""

    def __init__(self, texts: RowTexts, in_development: NDArray[np.bool_]) -> None:
        import numpy as np

        self._texts = texts
        self._chosen = in_development
        rows, own_texts = texts.own()
        self._in_dev = np.zeros(len(texts.distinct), dtype=bool)
        self._in_dev[own_texts[in_development[rows]]] = True
        self._in_train = np.zeros(len(texts.distinct), dtype=bool)
        self._in_train[own_texts[~in_development[rows]]] = True

    def development(self, dataset: StoredDataset) -> int:
        """Return how many rows of a set are in the development part."""
        start = self._texts.starts[dataset.info.name]
        return int(self._chosen[start : start + len(dataset)].sum())

    def train(self, dataset: StoredDataset) -> Iterator[Outcome]:
        """Yield the outcomes of all rows for the training part."""
        start = self._texts.starts[dataset.info.name]
        for row in range(len(dataset)):
            example = dataset[row]
            if self._chosen[start + row]:
                yield Outcome(row, example, None, MOVED)
            else:
                after = self._drop_shared_negatives(example, start + row, self._in_dev)
                yield Outcome(row, example, after, f"a negative is {MOVED}")

    def dev_examples(self, dataset: StoredDataset) -> Iterator[Example]:
        """Yield the rows of the development part."""
        outcomes = drop_lonely(dataset, partial(self._yield_dev_outcomes, dataset))
        return (outcome.after for outcome in outcomes if outcome.after is not None)

    def _yield_dev_outcomes(self, dataset: StoredDataset) -> Iterator[Outcome]:
        start = self._texts.starts[dataset.info.name]
        for row in range(len(dataset)):
            if self._chosen[start + row]:
                example = dataset[row]
                yield Outcome(
                    row, example, self._drop_shared_negatives(example, start + row, self._in_train)
                )

    def _drop_shared_negatives(
        self, example: Example, row: int, elsewhere: NDArray[np.bool_]
    ) -> Example:
        _, negatives = self._texts.of_row(row)
        shared_places = [number for number, text in enumerate(negatives) if elsewhere[text]]
        return drop_negatives(example, shared_places) if shared_places else example


def _explain_too_large(dataset: StoredDataset, groups: NDArray[np.int64]) -> str:
    import numpy as np

    _, sizes = np.unique(groups, return_counts=True)
    return (
        f"{dataset.info.name}: no group of rows that share texts or labels is small enough for the "
        f"development part; its {len(sizes):,} groups have {sizes.min():,} to {sizes.max():,} of "
        f"{len(dataset):,} rows; raise share or rows, or give the set a development file of its own"
    )


def group_rows(count: int, rows: Numbers, shared_items: Numbers) -> Numbers:
    """Return each row's group number [count]; rows that share a text or label are in one group.

    `rows[i]` has the text or label `things[i]`. Groups are numbered in the order of their
    first rows.
    """
    import numpy as np
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    size = count + (int(shared_items.max()) + 1 if len(shared_items) else 0)
    edges = coo_array(
        (np.ones(len(rows), np.int8), (rows, shared_items + count)), shape=(size, size)
    )
    _, components = connected_components(edges, directed=False)
    _, first, groups = np.unique(components[:count], return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[groups]


def choose_rows(
    groups: Numbers, sets: Numbers, limits: Sequence[int], seed: int
) -> NDArray[np.bool_]:
    """Return the mask of rows in randomly chosen whole groups, with at most `limits` rows of each set.

    Groups are taken in random order. A group is skipped if it has more rows of any set than that set's limit
    still allows.
    """
    import numpy as np

    order = np.argsort(groups, kind="stable")
    count = int(groups.max()) + 1
    ends = np.cumsum(np.bincount(groups, minlength=count))
    rows_left = np.array(limits)
    is_chosen = np.zeros(len(groups), dtype=bool)
    for group in shuffled(count, stable_seed("split", seed)).tolist():
        rows = order[ends[group - 1] if group else 0 : ends[group]]
        needed = np.bincount(sets[rows], minlength=len(rows_left))
        if (needed <= rows_left).all():
            rows_left -= needed
            is_chosen[rows] = True
            if not rows_left.any():
                break
    return is_chosen
