"""Near copies among documents, and the division of passages into train, dev and test before any query."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from emberge import DataError, hash_evenly

from emberge_data.documents.cutting import TextPassage
from emberge_data.documents.source_document import SourceDocument
from emberge_data.steps.text_similarity import ComparedTexts, normalise

DataPart = Literal["train", "dev", "test"]
FEW_DOCUMENTS = 20
"""Number of documents below which runs of passages are divided."""
RUN_PASSAGES = 5
SHINGLE = 24
"""Characters of the runs by which documents are compared: shorter ones are common to most long texts."""


def find_copies(documents: Sequence[SourceDocument], folder: Path, threshold: float) -> list[int]:
    """Return the numbers of documents that are near copies of earlier ones, such as versions of a page.

    Documents are near copies if the Jaccard similarity of their runs of SHINGLE characters reaches the
    threshold. Keys are in a temporary file in `folder`.
    """
    import numpy as np

    from emberge_data.steps.text_copies import join_near_copies

    texts = [
        normalise("\n".join(section.text for section in document.sections))
        for document in documents
    ]
    numbers = np.arange(len(texts))
    first = join_near_copies(
        lambda number: ComparedTexts("", (texts[number],)),
        numbers,
        folder,
        threshold=threshold,
        size=SHINGLE,
    )
    return [int(number) for number in numbers[first != numbers]]


def divide_passages(
    passages: Sequence[Sequence[TextPassage]], *, dev: float, test: float, seed: int
) -> list[DataPart]:
    """Return the part of each passage, in order; `passages` has those of each document.

    Documents are divided, and with fewer than FEW_DOCUMENTS of them runs of RUN_PASSAGES passages.

    Raises:
        DataError: if there are too few passages for all parts.
    """
    flat = [passage.id for group in passages for passage in group]
    units = [group[0].id for group in passages for _ in group]
    if len(set(units)) < FEW_DOCUMENTS:
        units = [flat[place - place % RUN_PASSAGES] for place in range(len(flat))]
    order = sorted(dict.fromkeys(units), key=lambda unit: hash_evenly("part", seed, unit))
    held_out, dev_count = (
        max(1, round(share * len(order))) if share else 0 for share in (test, dev)
    )
    parts: list[DataPart] = ["test"] * held_out
    parts += ["dev"] * dev_count
    if len(parts) >= len(order):
        raise DataError(
            "the documents have too few passages for all parts; add documents, or set dev: 0 or test: 0"
        )
    parts += ["train"] * (len(order) - len(parts))
    part_by_unit = dict(zip(order, parts, strict=True))
    return [part_by_unit[unit] for unit in units]
