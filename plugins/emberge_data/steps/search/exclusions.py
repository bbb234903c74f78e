"""Documents that a query must not get, regardless of their scores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """Sorted lists of text indices, concatenated: list i is `places[starts[i] : starts[i + 1]]`."""

    places: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, lists: Sequence[Iterable[int]]) -> Lists:
        """Concatenate these lists, each sorted and without repetitions."""
        import numpy as np

        pairs = [(number, item) for number, entries in enumerate(lists) for item in entries]
        list_numbers, places = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return cls.of_pairs(list_numbers, places, len(lists))

    @classmethod
    def of_pairs(cls, numbers: NDArray[np.int64], places: NDArray[np.int64], size: int) -> Lists:
        """Return `size` lists: list `numbers[i]` has `places[i]`, each place once."""
        import numpy as np

        order = np.lexsort((places, numbers))
        numbers, places = numbers[order], places[order]
        new = np.ones(len(numbers), dtype=bool)
        new[1:] = (numbers[1:] != numbers[:-1]) | (places[1:] != places[:-1])
        starts = np.searchsorted(numbers[new], np.arange(size + 1))
        return cls(places[new], starts)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, number: int) -> NDArray[np.int64]:
        return self.places[self.starts[number] : self.starts[number + 1]]

    def pairs(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (rows, places): every entry of the lists `numbers`, with the list's index in `numbers`."""
        import numpy as np

        starts, ends = self.starts[numbers], self.starts[numbers + 1]
        rows = np.repeat(np.arange(len(numbers)), ends - starts)
        offsets_in_list = np.arange(len(rows)) - np.repeat(
            np.cumsum(ends - starts) - (ends - starts), ends - starts
        )
        return rows, self.places[starts[rows] + offsets_in_list]

    def select(self, numbers: NDArray[np.int64]) -> Lists:
        """Return the lists at these indices, renumbered from 0."""
        rows, places = self.pairs(numbers)
        return Lists.of_pairs(rows, places, len(numbers))

    def lacks(self, numbers: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for each i whether list `numbers[i]` lacks `places[i]`."""
        import numpy as np

        size = 1 + int(max(self.places.max(initial=0), places.max(initial=0)))
        listed_keys = np.repeat(np.arange(len(self)), np.diff(self.starts)) * size + self.places
        pair_keys = numbers * size + places
        at = np.minimum(np.searchsorted(listed_keys, pair_keys), max(0, len(listed_keys) - 1))
        return (
            listed_keys[at] != pair_keys
            if len(listed_keys)
            else np.ones(len(pair_keys), dtype=bool)
        )


@dataclass(frozen=True, slots=True, eq=False)
class Exclusions:
    """Documents that a query must not get: those in the query's own list and in its group's list.

    `own` has a list for each query. A query that belongs to a group (`group[query]` is not -1) gets none of
    the documents of the group's list either. Groups suit few but long lists, such as one for each label.
    """

    own: Lists
    group: NDArray[np.int64] | None = None
    grouped: Lists | None = None

    def fill(self, scores: Tensor, queries: NDArray[np.int64], first: int, value: float) -> None:
        """Overwrite excluded documents' scores [queries, documents]; columns are counted from `first`."""
        import numpy as np
        import torch

        last = first + scores.shape[1]
        rows, places = self.own.pairs(queries)
        in_block = (places >= first) & (places < last)
        at = (
            torch.from_numpy(part).to(scores.device)
            for part in (rows[in_block], places[in_block] - first)
        )
        scores[tuple(at)] = value
        if self.group is None or self.grouped is None:
            return
        groups = self.group[queries]
        for group in np.unique(groups[groups >= 0]):
            members = self.grouped[group]
            excluded = members[np.searchsorted(members, first) : np.searchsorted(members, last)]
            of_group = torch.from_numpy(np.flatnonzero(groups == group)).to(scores.device)
            columns = torch.from_numpy(excluded - first).to(scores.device)
            scores[of_group[:, None], columns] = value

    def allows(self, query: int, documents: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether a query may get each of these documents."""
        import numpy as np

        is_excluded = np.isin(documents, self.own[query])
        if self.group is not None and self.grouped is not None and self.group[query] >= 0:
            is_excluded |= np.isin(documents, self.grouped[int(self.group[query])])
        return ~is_excluded
