"""Changes of queries' hits from an old model to a new one, and topics: groups of similar queries."""

from __future__ import annotations

import itertools
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from emberge.numerics import unit_rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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
    """Hits of one query (document numbers by rank) under the old model and under the new one."""

    query: int
    old: tuple[int, ...]
    new: tuple[int, ...]

    @property
    def overlap(self) -> float:
        """Share of the old hits that are among the new ones."""
        return len(set(self.old) & set(self.new)) / len(self.old)

    @property
    def group(self) -> Group:
        """Most serious kind of change that applies to the query."""
        if self.old == self.new:
            return "same"
        if self.old[0] not in self.new:
            return "first hit lost"
        if self.old[0] != self.new[0]:
            return "first hit moved"
        return "order changed" if set(self.old) == set(self.new) else "others changed"

    @property
    def lost(self) -> tuple[int, ...]:
        """Old hits that are not among the new ones, in order."""
        return tuple(document for document in self.old if document not in self.new)

    @property
    def gained(self) -> tuple[int, ...]:
        """New hits that are not among the old ones, in order."""
        return tuple(document for document in self.new if document not in self.old)


@dataclass(frozen=True)
class QueryChanges:
    """Changes of all queries, the worst first: sorted by group, overlap and query number."""

    all: tuple[QueryChange, ...]

    @property
    def overlap(self) -> float:
        """Mean over queries of the share of old hits that are among the new ones."""
        return sum(change.overlap for change in self.all) / len(self.all)

    @property
    def churn(self) -> float:
        """Share of queries whose first document differs."""
        return sum(change.old[0] != change.new[0] for change in self.all) / len(self.all)

    def count(self, group: Group) -> int:
        """Return the number of queries in a group."""
        return sum(change.group == group for change in self.all)


def changes_of(old: Sequence[Sequence[int]], new: Sequence[Sequence[int]]) -> QueryChanges:
    """Return the changes from the old hits of each query to the new ones."""
    changes = [
        QueryChange(query, tuple(map(int, old_hits)), tuple(map(int, new_hits)))
        for query, (old_hits, new_hits) in enumerate(zip(old, new, strict=True))
    ]
    return QueryChanges(
        tuple(
            sorted(
                changes,
                key=lambda change: (GROUPS.index(change.group), change.overlap, change.query),
            )
        )
    )


# Words in a topic's name, rounds of k-means (enough to converge), and candidates for each starting point.
_WORDS, _ROUNDS, _DRAWN = 3, 50, 8
_SEED = 0


@dataclass(frozen=True)
class Topic:
    """Group of queries with its distinctive words, its most central query, and its changes.

    `words` are empty if no word occurs in several of its queries.
    """

    words: tuple[str, ...]
    central: int
    changes: QueryChanges

    @property
    def size(self) -> int:
        """Number of the topic's queries."""
        return len(self.changes.all)


def topics_of(
    vectors: Any, queries: Sequence[str], changes: QueryChanges, count: int
) -> list[Topic]:
    """Return at most `count` topics of the queries, whose vectors are [n, d], the worst first.

    The worst topic has the smallest share of kept hits. Ties are broken by the share of changed first
    documents, then by size.
    """
    import numpy as np

    rows = unit_rows(np.asarray(vectors, np.float32))
    group = groups_of(rows, count)
    members = [np.flatnonzero(group == number) for number in range(group.max() + 1)]
    names = _name_groups([[queries[int(place)] for place in places] for places in members])
    topics = []
    for words, places in zip(names, members, strict=True):
        central = int(places[np.argmax(rows[places] @ rows[places].mean(0))])
        topic_changes = tuple(one for one in changes.all if group[one.query] == group[central])
        topics.append(Topic(words, central, QueryChanges(topic_changes)))
    return sorted(
        topics, key=lambda one: (one.changes.overlap, -one.changes.churn, -one.size, one.central)
    )


def groups_of(rows: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Return each row's group number [n] by k-means; few rows may form fewer than `count` groups.

    Starts are drawn as in greedy k-means++ (Arthur and Vassilvitskii, 2007) with a fixed seed.
    """
    import numpy as np
    from scipy.cluster.vq import kmeans2

    points = np.asarray(rows, np.float64)
    starts = _choose_starts(points, count)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of groups that became empty
        _, group = kmeans2(points, starts, iter=_ROUNDS, minit="matrix")
    return np.asarray(np.unique(group, return_inverse=True)[1], np.int64).reshape(-1)


def _choose_starts(points: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Return `count` different starting points, each the best of several candidates (greedy k-means++)."""
    import numpy as np

    draw = np.random.default_rng(_SEED)

    def squared_distances(row: int) -> NDArray[np.float64]:
        squares: NDArray[np.float64] = ((points - points[row]) ** 2).sum(1)
        return squares

    starts = [int(draw.integers(len(points)))]
    nearest_distances = squared_distances(starts[0])
    while len(starts) < count and nearest_distances.max() > 1e-12:
        candidates = draw.choice(
            len(points), size=_DRAWN, p=nearest_distances / nearest_distances.sum()
        )
        distances_by_row = {
            int(row): np.minimum(nearest_distances, squared_distances(int(row)))
            for row in candidates
        }
        best = min(distances_by_row, key=lambda row: (float(distances_by_row[row].sum()), row))
        starts.append(best)
        nearest_distances = distances_by_row[best]
    return points[starts]


def _name_groups(groups: Sequence[Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """Yield the words of each group that are frequent in it and rare in others, most distinctive first."""
    counts = [Counter(itertools.chain(*map(_split_words, texts))) for texts in groups]
    total_counts = sum(counts, Counter[str]())
    total = sum(map(len, groups))
    for texts, word_counts in zip(groups, counts, strict=True):
        score_by_word = {
            word: number / len(texts) * math.log(total / total_counts[word])
            for word, number in word_counts.items()
            if number > 1 or len(texts) == 1
        }
        ordered_words = sorted(score_by_word, key=lambda word: (-score_by_word[word], word))
        yield tuple(word for word in ordered_words if score_by_word[word] > 0)[:_WORDS]


def _split_words(text: str) -> set[str]:
    return set(re.findall(r"[^\W\d_]{2,}", text.lower()))
