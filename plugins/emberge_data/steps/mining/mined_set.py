"""Queries and passages of a set: which passage is a positive of which query, or may be one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from emberge import stable_seed

from emberge_data.steps.listed_set import ChosenTexts, ListedSet
from emberge_data.steps.mining.choice import Passages
from emberge_data.steps.search.exclusions import Exclusions, Lists

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["MinedSet"]


@dataclass(frozen=True, eq=False)
class MinedSet:
    """Distinct queries and passages of a set; `query_of` has the query of each row."""

    listed: ListedSet
    queries: ChosenTexts
    documents: ChosenTexts
    query_of: NDArray[np.int64]
    passages: Passages

    @classmethod
    def of(cls, listed: ListedSet, seed: int, *, keep_negatives: bool = False) -> MinedSet:
        """Arrange a listed set: rows with the same anchor are one query.

        Passages are positives and negatives of all rows; beside further texts (a corpus), which take the place
        of the negatives, positives alone. With labels, a text whose label no row states is no passage, unless
        it is of the corpus, and no query gets a text of a row with one of its labels.
        """
        import numpy as np

        queries, query_of = np.unique(listed.anchors, return_inverse=True)
        labelled = any(label is not None for label in listed.labels)
        documents = _documents(listed, labelled)
        of_text = np.full(len(listed.texts), -1)
        of_text[documents] = np.arange(len(documents))
        positives, negatives = (
            (query_of[part.rows], of_text[part.places])
            for part in (listed.positives, listed.negatives)
        )
        never = [positives, (np.arange(len(queries)), of_text[queries])]
        if keep_negatives:
            never.append(negatives)
        numbers, places = (np.concatenate(side) for side in zip(*never, strict=True))
        known = places >= 0
        own = Lists.of_pairs(numbers[known], places[known], len(queries))
        group, grouped = _groups(listed, query_of, of_text) if labelled else (None, None)
        found = ChosenTexts(listed.texts, queries), ChosenTexts(listed.texts, documents)
        return cls(
            listed,
            *found,
            query_of,
            Passages(
                Lists.of_pairs(*positives, len(queries)),
                Exclusions(own, group, grouped),
                *(_keys(texts, seed) for texts in found),
            ),
        )


def _documents(listed: ListedSet, labelled: bool) -> NDArray[np.int64]:
    """Return the places of passages, in the order in which they first come."""
    import numpy as np

    if len(listed.extra):
        return np.union1d(listed.positives.places, listed.extra)
    found = np.union1d(listed.positives.places, listed.negatives.places)
    if not labelled:
        return found
    stated = np.array([label is not None for label in listed.labels])
    known = stated[listed.positives.rows]
    named = np.union1d(listed.anchors[stated], listed.positives.places[known])
    return np.union1d(np.intersect1d(found, named), listed.positives.places)


def _groups(
    listed: ListedSet, query_of: NDArray[np.int64], of_text: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Lists]:
    """Return the group of each query, which is the set of its rows' labels, and the texts of each group."""
    import numpy as np

    names = {label: number for number, label in enumerate(dict.fromkeys(listed.labels))}
    label_of = np.array([-1 if one is None else names[one] for one in listed.labels])
    rows = listed.positives.rows
    texts = of_text[np.concatenate([listed.anchors, listed.positives.places])]
    labels = np.concatenate([label_of, label_of[rows]])
    used = (labels >= 0) & (texts >= 0)
    by_label = Lists.of_pairs(labels[used], texts[used], len(names))
    stated = label_of >= 0
    size = int(query_of.max()) + 1
    by_query = Lists.of_pairs(query_of[stated], label_of[stated], size)
    groups: dict[tuple[int, ...], int] = {}
    group = np.full(size, -1)
    for query in range(size):
        own = tuple(by_query[query].tolist())
        if own:
            group[query] = groups.setdefault(own, len(groups))
    return group, Lists.of([by_label.pairs(np.array(own))[1].tolist() for own in groups])


def _keys(texts: Sequence[str], seed: int) -> NDArray[np.uint64]:
    """Return a random number for each text, which depends on the seed and the text alone."""
    import numpy as np
    from emberge.engine import text_keys

    found = np.frombuffer(text_keys(texts), "<u8")[::2]
    return found ^ np.uint64(stable_seed("mining", seed))
