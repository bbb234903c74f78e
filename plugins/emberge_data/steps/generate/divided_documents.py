"""Documents that are copies, and the division of the others into train, dev and test before any query."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from emberge import DataError
from emberge.data import even_place

from emberge_data.documents.cutting import TextPassage
from emberge_data.documents.source_document import SourceDocument
from emberge_data.steps.text_similarity import normalise

DataPart = Literal["train", "dev", "test"]
FEW = 20
"""Number of documents below which runs of passages are divided."""
RUN = 5
SHINGLE = 24
"""Characters of the runs by which documents are compared: shorter ones are common to most long texts."""


def find_copies(documents: Sequence[SourceDocument], folder: Path, threshold: float) -> list[int]:
    """Return the numbers of documents that are nearly a copy of an earlier one, as another version of it is.

    Documents are near copies if the Jaccard similarity of their runs of SHINGLE characters reaches the
    threshold. `folder` holds what is compared until all is.
    """
    import numpy as np

    from emberge_data.steps.text_copies import join_near_texts

    texts = [
        normalise("\n".join(section.text for section in document.sections))
        for document in documents
    ]
    numbers = np.arange(len(texts))
    first = join_near_texts(texts, numbers, folder, threshold=threshold, size=SHINGLE)
    return [int(number) for number in numbers[first != numbers]]


def divide_passages(
    passages: Sequence[Sequence[TextPassage]], *, dev: float, test: float, seed: int
) -> list[DataPart]:
    """Return the part of each passage, in order; `passages` has those of each document.

    Documents are divided, and with fewer than FEW of them runs of RUN passages.

    Raises:
        DataError: if there are too few passages for all parts.
    """
    flat = [passage.id for group in passages for passage in group]
    units = [group[0].id for group in passages for _ in group]
    if len(set(units)) < FEW:
        units = [flat[place - place % RUN] for place in range(len(flat))]
    distinct = list(dict.fromkeys(units))
    needed = 1 + (dev > 0) + (test > 0)
    if len(distinct) < needed:
        raise DataError(
            f"the documents have too few passages for {needed} parts; add documents, or set "
            "dev: 0 or test: 0"
        )
    part_by_unit = _assign_parts(distinct, dev, test, seed)
    return [part_by_unit[unit] for unit in units]


def _assign_parts(units: Sequence[str], dev: float, test: float, seed: int) -> dict[str, DataPart]:
    """Map each unit to its part, at random; a part with a share has at least one unit."""
    order = sorted(units, key=lambda unit: even_place("part", seed, unit))
    counts = {
        part: max(1, round(share * len(units))) if share else 0
        for part, share in (("test", test), ("dev", dev))
    }
    # Test and development never leave nothing to train on.
    while sum(counts.values()) >= len(units):
        counts[max(counts, key=lambda part: counts[part])] -= 1
    first_train = counts["test"] + counts["dev"]
    parts: list[DataPart] = [
        "test" if place < counts["test"] else "dev" if place < first_train else "train"
        for place in range(len(order))
    ]
    return dict(zip(order, parts, strict=True))
