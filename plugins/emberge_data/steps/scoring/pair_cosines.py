"""Cosines of a set's pairs, by an encoder whose embeddings are on disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from emberge import Workspace

from emberge_data.steps.scoring.pair_scores import Score, Segment
from emberge_data.steps.teacher import OpenTeacher

if TYPE_CHECKING:
    from emberge.data import StoredDataset


def pair_cosines(teacher: OpenTeacher, dataset: StoredDataset, workspace: Workspace) -> Score:
    """Embed a set's texts and return the function that gives cosines of a segment's pairs."""
    import numpy as np

    from emberge_data.steps.arranged_set import ArrangedSet
    from emberge_data.steps.listed_set import ListedSet
    from emberge_data.steps.search.space import Space

    listed = ListedSet.of(dataset, workspace)
    above, below = listed.positives, listed.negatives
    arranged = ArrangedSet.of(listed, np.union1d(above.places, below.places))
    space = Space(
        teacher.queries(arranged.queries, dataset),
        teacher.documents(arranged.documents, dataset),
        workspace.machine.device,
    )

    def score(segment: Segment) -> tuple[Sequence[float], int]:
        texts = [np.concatenate([above.of(row), below.of(row)]) for row, _ in segment]
        queries = np.repeat(
            arranged.query_of[[row for row, _ in segment]], [len(own) for own in texts]
        )
        cosines = space.scores(queries, arranged.document_of[np.concatenate(texts)])
        return cosines.clip(-1.0, 1.0).tolist(), 0

    return score
