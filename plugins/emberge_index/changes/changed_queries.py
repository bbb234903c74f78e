"""First ten documents of queries by two models, and what differs between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

# Hits of a query that are compared.
FIRST = 10

Group = Literal["first hit lost", "first hit moved", "others changed", "order changed", "same"]
GROUPS: tuple[Group, ...] = (
    "first hit lost",
    "first hit moved",
    "others changed",
    "order changed",
    "same",
)


@dataclass(frozen=True)
class QueryChange:
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
class QueryChanges:
    """Changes of all queries, the worst first: by group, then by overlap, then as queries came."""

    all: tuple[QueryChange, ...]

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


def changes_of(old: Sequence[Sequence[int]], new: Sequence[Sequence[int]]) -> QueryChanges:
    """Return the changes from the old hits of each query to the new ones."""
    found = [
        QueryChange(query, tuple(map(int, before)), tuple(map(int, after)))
        for query, (before, after) in enumerate(zip(old, new, strict=True))
    ]
    return QueryChanges(
        tuple(sorted(found, key=lambda one: (GROUPS.index(one.group), one.overlap, one.query)))
    )
