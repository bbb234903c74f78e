"""Texts by which a model is made smaller: the corpus of a trimmed vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from emberge import DataError, Workspace

if TYPE_CHECKING:
    from emberge import DataEntry
    from emberge.data import DistinctTexts


def read_corpus(workspace: Workspace, entries: Sequence[DataEntry], option: str) -> DistinctTexts:
    """Return the distinct texts of data sets: anchors, positives and negatives.

    Raises:
        DataError: if there are none, or all are blank.
    """
    from emberge.data import DistinctTexts, list_texts, step_datasets

    texts = DistinctTexts(list_texts(step_datasets(workspace, entries)), workspace.work)
    if not any(texts[i].strip() for i in range(len(texts))):
        raise DataError(f"{option}: has no text that is not empty; give texts of the users' kind")
    return texts
