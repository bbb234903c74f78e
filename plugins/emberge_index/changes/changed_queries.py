"""First ten documents of queries by two models, and what differs between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["GROUPS", "Change", "Changes", "changes_of", "first_hits"]

FIRST = 10
# Queries whose similarities are in memory at once.
_PIECE = 256

Group = Literal["first hit lost", "first hit moved", "others changed", "order changed", "same"]
GROUPS: tuple[Group, ...] = (
    "first hit lost",
    "first hit moved",
    "others changed",
    "order changed",
    "same",
)


@dataclass(frozen=True)
class Change:
    """Hits of one query, places of documents by rank, under the old model and under the new one."""

    query: int
    old: tuple[int, ...]
    new: tuple[int, ...]

    @property
    def overlap(self) -> float:
        """Share of the old hits that are among the new ones."""
        return len(set(self.old) & set(self.new)) / len(self.old)

    @property
    def group(self) -> Group:
        """Kind of the change, by the gravest that is true."""
        if self.old == self.new:
            return "same"
        if self.old[0] not in self.new:
            return "first hit lost"
        if self.old[0] != self.new[0]:
            return "first hit moved"
        return "order changed" if set(self.old) == set(self.new) else "others changed"

    @property
    def lost(self) -> tuple[int, ...]:
        """Old hits that the new model does not have, in their order."""
        return tuple(one for one in self.old if one not in self.new)

    @property
    def gained(self) -> tuple[int, ...]:
        """New hits that the old model did not have, in their order."""
        return tuple(one for one in self.new if one not in self.old)


@dataclass(frozen=True)
class Changes:
    """Changes of all queries, the worst first: by group, then by overlap, then as queries came."""

    all: tuple[Change, ...]

    @property
    def overlap(self) -> float:
        """Mean share of the old hits that the new model has too."""
        return sum(one.overlap for one in self.all) / len(self.all)

    @property
    def churn(self) -> float:
        """Share of queries with another first document."""
        return sum(one.old[0] != one.new[0] for one in self.all) / len(self.all)

    def count(self, group: Group) -> int:
        """Return the number of queries in a group."""
        return sum(one.group == group for one in self.all)


def first_hits(queries: Any, documents: Any, count: int = FIRST) -> NDArray[np.int64]:
    """Return the places of the documents nearest to each query by cosine, int64 [n, count], nearest first.

    Of equally near ones the first comes first.
    """
    import numpy as np

    left, right = _unit(queries), _unit(documents)
    count = min(count, len(right))
    found = np.empty((len(left), count), np.int64)
    for start in range(0, len(left), _PIECE):
        near = left[start : start + _PIECE] @ right.T
        found[start : start + _PIECE] = np.argsort(-near, axis=1, kind="stable")[:, :count]
    return found


def changes_of(old: Sequence[Sequence[int]], new: Sequence[Sequence[int]]) -> Changes:
    """Return the changes from the old hits of each query to the new ones."""
    found = [
        Change(query, tuple(map(int, before)), tuple(map(int, after)))
        for query, (before, after) in enumerate(zip(old, new, strict=True))
    ]
    return Changes(
        tuple(sorted(found, key=lambda one: (GROUPS.index(one.group), one.overlap, one.query)))
    )


def _unit(rows: Any) -> Any:
    import numpy as np

    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
