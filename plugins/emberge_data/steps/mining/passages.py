"""Passages of a set: which of them a query may get as a negative, and which never."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emberge import stable_seed

from emberge_data.steps.mining.choice import Passages
from emberge_data.steps.search.exclusions import Exclusions, Lists

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from emberge_data.steps.arranged_set import ArrangedSet
    from emberge_data.steps.listed_set import ListedSet


def places_of_passages(listed: ListedSet) -> NDArray[np.int64]:
    """Return the places of a set's passages among its texts, in the order in which they first come.

    They are the positives and negatives of all rows; with a corpus, its texts take the place of negatives.
    In a set with labels a negative is no passage if no row states its label.
    """
    import numpy as np

    if len(listed.extra):
        return np.union1d(listed.positives.places, listed.extra)
    found = np.union1d(listed.positives.places, listed.negatives.places)
    stated = np.array([label is not None for label in listed.labels])
    if not stated.any():
        return found
    named = np.union1d(listed.anchors[stated], listed.positives.places)
    return np.intersect1d(found, named)


def passages_of(arranged: ArrangedSet, seed: int, *, keep_negatives: bool = False) -> Passages:
    """Return which passages are a query's positives, and which it must never get as a negative.

    These are its positives, the query itself, with labels every text of a row that has a label of the query's
    rows, and, to keep the negatives, those.
    """
    listed = arranged.listed
    positives = arranged.numbers(listed.positives)
    itself = arranged.query_of, arranged.document_of[listed.anchors]
    never = [positives, itself]
    if keep_negatives:
        never.append(arranged.numbers(listed.negatives))
    groups = _groups(arranged) if any(label is not None for label in listed.labels) else ()
    return Passages(
        arranged.lists(positives),
        Exclusions(arranged.lists(*never), *groups),
        *(_keys(texts, seed) for texts in (arranged.queries, arranged.documents)),
    )


def _groups(arranged: ArrangedSet) -> tuple[NDArray[np.int64], Lists]:
    """Return the group of each query, which is the set of its rows' labels, and the texts of each group."""
    import numpy as np

    listed = arranged.listed
    names = {label: number for number, label in enumerate(dict.fromkeys(listed.labels))}
    label_of = np.array([-1 if one is None else names[one] for one in listed.labels])
    texts = np.concatenate([listed.anchors, listed.positives.places])
    labels = np.concatenate([label_of, label_of[listed.positives.rows]])
    documents = arranged.document_of[texts]
    used = (labels >= 0) & (documents >= 0)
    by_label = Lists.of_pairs(labels[used], documents[used], len(names))
    stated = label_of >= 0
    by_query = Lists.of_pairs(arranged.query_of[stated], label_of[stated], len(arranged.queries))
    groups: dict[tuple[int, ...], int] = {}
    group = np.full(len(arranged.queries), -1)
    for query in range(len(group)):
        own = tuple(by_query[query].tolist())
        if own:
            group[query] = groups.setdefault(own, len(groups))
    return group, Lists.of([by_label.pairs(np.array(own))[1].tolist() for own in groups])


def _keys(texts: Sequence[str], seed: int) -> NDArray[np.uint64]:
    """Return a random number for each text, which depends on the seed and the text alone."""
    import numpy as np
    from emberge.hashes import text_keys

    found = np.frombuffer(text_keys(texts), "<u8")[::2]
    return found ^ np.uint64(stable_seed("mining", seed))
