"""Choice of negatives among a query's nearest passages, below a threshold that its positives set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge_data.steps.search.exclusions import Exclusions, Lists
from emberge_data.steps.search.nearest import nearest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from emberge_data.steps.listed_set import ArrangedSet, ListedSet
    from emberge_data.steps.search.exact import SearchMemory
    from emberge_data.steps.search.found_passages import FoundPassages
    from emberge_data.steps.search.nearest import NearestDocuments
    from emberge_data.steps.search.space import Space

EMPTY = -1


def thresholds(positives: NDArray[np.float64], margin: float) -> NDArray[np.float64]:
    """Return the highest score that a negative of these positives may have: s - (1 - margin) |s|.

    s is the lowest score of the positives. If s is positive, the threshold is `margin` times s (NV-Retriever,
    arXiv:2407.15831). If s is negative, that product would be above s; so the threshold is the same distance
    below s.
    """
    return positives - (1 - margin) * abs(positives)


def lowest_positives(
    space: Space | FoundPassages, queries: NDArray[np.int64], positives: Lists
) -> NDArray[np.float64]:
    """Return the lowest score of a positive for each of these queries, which all have positives."""
    import numpy as np

    return _reduce_positives(space, queries, positives, np.minimum)


def highest_positives(
    space: Space | FoundPassages, queries: NDArray[np.int64], positives: Lists
) -> NDArray[np.float64]:
    """Return the highest score of a positive for each of these queries, which all have positives."""
    import numpy as np

    return _reduce_positives(space, queries, positives, np.maximum)


def _reduce_positives(
    space: Space | FoundPassages,
    queries: NDArray[np.int64],
    positives: Lists,
    choose_score: np.ufunc,
) -> NDArray[np.float64]:
    """Return one score of each query's positives, which `choose_score` chooses of two."""
    import numpy as np

    rows, places = positives.pairs(queries)
    scores = space.scores(queries[rows], places)
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    return np.asarray(choose_score.reduceat(scores, starts))


def compute_ceilings(
    spaces: Sequence[Space | FoundPassages],
    queries: NDArray[np.int64],
    positives: Lists,
    margin: float,
) -> NDArray[np.float64]:
    """Return the highest score of a negative by each teacher, [teachers, queries]."""
    import numpy as np

    lowest = [lowest_positives(space, queries, positives) for space in spaces]
    return np.stack([thresholds(scores, margin) for scores in lowest])


def find_passing(
    spaces: Sequence[Space | FoundPassages],
    queries: NDArray[np.int64],
    places: NDArray[np.int64],
    ceilings: NDArray[np.float64] | None,
) -> NDArray[np.bool_]:
    """Return which candidates, [queries, candidates], pass every threshold; padding never passes."""
    import numpy as np

    passes: NDArray[np.bool_] = places != EMPTY
    if ceilings is not None:
        for space, ceiling in zip(spaces, ceilings, strict=True):
            passes &= space.scores(queries, np.where(passes, places, 0)) <= ceiling[:, None]
    return passes


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceOptions:
    """Options of a choice; `ranks` are the first and last rank, from 1; None allows all ranks."""

    count: int
    margin: float | None = 0.95
    ranks: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Passages:
    """Queries and passages of a search: positives and exclusions by query, and the number of passages."""

    positives: Lists
    excluded: Exclusions
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class Mined:
    """Negatives of n queries: text indices [n, count], padded with -1."""

    places: NDArray[np.int64]


def nearest_passages(
    spaces: Sequence[Space | FoundPassages],
    queries: NDArray[np.int64],
    count: int,
    *,
    ceilings: NDArray[np.float64] | None = None,
    excluded: Exclusions | None = None,
    limits: SearchMemory | None = None,
) -> list[NearestDocuments]:
    """Return the `count` nearest allowed passages of each teacher, by `nearest` or as they were found.

    Found passages are those that are allowed; a ceiling is for vectors alone.
    """
    from emberge_data.steps.search.space import Space

    vectors = [space for space in spaces if isinstance(space, Space)]
    if len(vectors) < len(spaces):
        return [space.nearest(queries, count) for space in spaces if not isinstance(space, Space)]
    return nearest(vectors, queries, count, ceilings=ceilings, excluded=excluded, limits=limits)


def choose(
    spaces: Sequence[Space | FoundPassages],
    queries: NDArray[np.int64],
    passages: Passages,
    choice: ChoiceOptions,
    limits: SearchMemory | None = None,
) -> Mined:
    """Return the negatives of these queries; `spaces` has one embedding space for each teacher.

    A candidate passes if no teacher scores it above that teacher's threshold. Each teacher lists candidates
    by its own scores. The lists are interleaved: the first candidate of each list, then the second of each.
    Without `ranks` a list is as long as needed. Ranks count allowed passages before the threshold is applied.
    """
    ceilings = None
    if choice.margin is not None:
        ceilings = compute_ceilings(spaces, queries, passages.positives, choice.margin)
    if choice.ranks is None:
        nearest_by_space = nearest_passages(
            spaces,
            queries,
            choice.count,
            ceilings=ceilings,
            excluded=passages.excluded,
            limits=limits,
        )
        lists = [documents.places for documents in nearest_by_space]
    else:
        first, last = choice.ranks
        last = min(last, passages.size)
        nearest_by_space = nearest_passages(
            spaces, queries, last, excluded=passages.excluded, limits=limits
        )
        lists = [
            _move_passing(spaces, queries, documents.places[:, first - 1 :], ceilings)
            for documents in nearest_by_space
        ]
    return Mined(_choose_candidates(lists, choice.count))


def take_in_turns(lists: Sequence[Sequence[int]]) -> list[int]:
    """Return the interleaved items of several lists, each item once."""
    largest_length = max(map(len, lists), default=0)
    turns = (items[turn] for turn in range(largest_length) for items in lists if turn < len(items))
    return list(dict.fromkeys(turns))


def _move_passing(
    spaces: Sequence[Space | FoundPassages],
    queries: NDArray[np.int64],
    places: NDArray[np.int64],
    ceilings: NDArray[np.float64] | None,
) -> NDArray[np.int64]:
    """Move candidates that pass every threshold to the front, and replace the others by padding."""
    import numpy as np

    passes = find_passing(spaces, queries, places, ceilings)
    order = np.argsort(~passes, axis=1, kind="stable")
    return np.take_along_axis(np.where(passes, places, EMPTY), order, axis=1)


def _choose_candidates(lists: Sequence[NDArray[np.int64]], count: int) -> NDArray[np.int64]:
    """Return the first `count` candidates of the interleaved lists, [queries, count], padded."""
    import numpy as np

    negatives = np.full((len(lists[0]), count), EMPTY, dtype=np.int64)
    if len(lists) == 1:
        nearest = lists[0][:, :count]
        negatives[:, : nearest.shape[1]] = nearest
        return negatives
    for row in range(len(negatives)):
        pool = take_in_turns([places[row][places[row] != EMPTY].tolist() for places in lists])
        pool = pool[:count]
        negatives[row, : len(pool)] = pool
    return negatives


def places_of_passages(listed: ListedSet) -> NDArray[np.int64]:
    """Return the indices of a set's passages in its list of texts, in the order of first occurrence.

    The passages are the positives and negatives of all rows; with a corpus, its texts take the place of
    negatives. In a set with labels, a negative is not a passage if no row states its label.
    """
    import numpy as np

    if len(listed.extra):
        return np.union1d(listed.positives.places, listed.extra)
    passages = np.union1d(listed.positives.places, listed.negatives.places)
    has_label = np.array([label is not None for label in listed.labels])
    if not has_label.any():
        return passages
    named = np.union1d(listed.anchors[has_label], listed.positives.places)
    return np.intersect1d(passages, named)


def passages_of(arranged: ArrangedSet, *, keep_negatives: bool = False) -> Passages:
    """Return each query's positive passages, and the passages that it must not get as negatives.

    A query must never get its positives or itself. In a set with labels it must not get any text of a row
    that has a label of the query's rows; and if its existing negatives are kept, it must not get them again.
    """
    listed = arranged.listed
    positives = arranged.numbers(listed.positives)
    own_places = arranged.query_of, arranged.document_of[listed.anchors]
    never = [positives, own_places]
    if keep_negatives:
        never.append(arranged.numbers(listed.negatives))
    groups = _group_labels(arranged) if any(label is not None for label in listed.labels) else ()
    return Passages(
        arranged.lists(positives),
        Exclusions(arranged.lists(*never), *groups),
        len(arranged.documents),
    )


def _group_labels(arranged: ArrangedSet) -> tuple[NDArray[np.int64], Lists]:
    """Return the group of each query, which is the set of its rows' labels, and the texts of each group."""
    import numpy as np

    listed = arranged.listed
    names = {label: number for number, label in enumerate(dict.fromkeys(listed.labels))}
    label_of = np.array(
        [-1 if stated_label is None else names[stated_label] for stated_label in listed.labels]
    )
    texts = np.concatenate([listed.anchors, listed.positives.places])
    labels = np.concatenate([label_of, label_of[listed.positives.rows]])
    documents = arranged.document_of[texts]
    has_both = (labels >= 0) & (documents >= 0)
    by_label = Lists.of_pairs(labels[has_both], documents[has_both], len(names))
    is_stated = label_of >= 0
    by_query = Lists.of_pairs(
        arranged.query_of[is_stated], label_of[is_stated], len(arranged.queries)
    )
    groups: dict[tuple[int, ...], int] = {}
    group = np.full(len(arranged.queries), -1)
    for query in range(len(group)):
        labels_of_query = tuple(by_query[query].tolist())
        if labels_of_query:
            group[query] = groups.setdefault(labels_of_query, len(groups))
    return group, Lists.of(
        [by_label.pairs(np.array(labels_of_query))[1].tolist() for labels_of_query in groups]
    )
