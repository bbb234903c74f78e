"""Groups of rows that share texts, the choice of whole groups for a part, and the rows of each part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from emberge import Example, draw_order, make_seed

from emberge_data.steps.outcome import Outcome, drop_rows_without_partners, drop_texts

if TYPE_CHECKING:
    import numpy as np
    from emberge.data import StoredDataset
    from numpy.typing import NDArray

    from emberge_data.steps.row_texts import RowTexts

    Numbers = NDArray[np.int64]


# Parts of a split set.
TRAIN, DEV, TEST = range(3)
NOUN_BY_PART = {TRAIN: "training", DEV: "development", TEST: "test"}


class SplitParts:
    """Rows of all parts, without negatives that are an anchor or a positive of another part."""

    def __init__(self, texts: RowTexts, part_of_row: Numbers) -> None:
        import numpy as np

        self._texts = texts
        self._part_of_row = part_of_row
        rows, own_texts = texts.list_own_texts()
        self._part_of_text = np.full(len(texts.distinct), -1)  # of texts that are negatives only
        self._part_of_text[own_texts] = part_of_row[rows]

    def list_outcomes(self, dataset: StoredDataset, part: int = TRAIN) -> Iterator[Outcome]:
        """Yield the outcomes of all rows for a part."""
        start = self._texts.starts[dataset.info.name]
        for row in range(len(dataset)):
            example, number = dataset[row], start + row
            if (other := int(self._part_of_row[number])) != part:
                yield Outcome(row, example, None, f"in the {NOUN_BY_PART[other]} part")
                continue
            foreign = [
                place
                for place, text in enumerate(self._texts.list_texts(number)[1])
                if self._part_of_text[text] not in (-1, part)
            ]
            after = drop_texts(example, "negative", foreign)
            yield Outcome(row, example, after, "a negative is in another part")

    def read_examples(self, dataset: StoredDataset, part: int) -> Iterator[Example]:
        """Yield the rows of one of the other parts."""
        outcomes = drop_rows_without_partners(dataset, partial(self.list_outcomes, dataset, part))
        return (outcome.after for outcome in outcomes if outcome.after is not None)


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
    for group in draw_order(count, make_seed(name, seed)).tolist():
        rows = order[ends[group - 1] if group else 0 : ends[group]]
        needed = np.bincount(sets[rows], minlength=len(rows_left))
        if (is_free is None or is_free[rows].all()) and (needed <= rows_left).all():
            rows_left -= needed
            is_chosen[rows] = True
            if not rows_left.any():
                break
    return is_chosen
