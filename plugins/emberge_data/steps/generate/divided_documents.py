"""Documents that are copies, and the division of the others into train, dev and test before any query."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from emberge import DataError
from emberge.data import even_place
from emberge.passages import SourceDocument, TextPassage

from emberge_data.steps.text_similarity import normalise

DataPart = Literal["train", "dev", "test"]
FEW = 20
"""Number of documents below which chapters are divided, or else runs of passages."""
RUN = 5
SHINGLE = 24
"""Characters of the runs by which documents are compared: shorter ones are common to most long texts."""


def find_copies(documents: Sequence[SourceDocument], folder: Path, threshold: float) -> list[int]:
    """Return the numbers of documents that are nearly a copy of an earlier one, as another version of it is.

    Documents are near copies if the Jaccard similarity of their runs of SHINGLE characters reaches the
    threshold. `folder` holds what is compared until all is.
    """
    import numpy as np

    from emberge_data.steps.deduplicate.text_copies import join_near_texts

    texts = [
        normalise("\n".join(section.text for section in document.sections))
        for document in documents
    ]
    numbers = np.arange(len(texts))
    first = join_near_texts(texts, numbers, folder, threshold=threshold, size=SHINGLE)
    return [int(number) for number in numbers[first != numbers]]


def divide_passages(
    documents: Sequence[SourceDocument],
    passages: Sequence[Sequence[TextPassage]],
    *,
    dev: float,
    test: float,
    seed: int,
) -> tuple[list[DataPart], str]:
    """Return the part of each passage, in order, and what was divided: documents, chapters or runs.

    With fewer than FEW documents, chapters (the highest headings) are divided; with fewer than FEW chapters,
    runs of RUN passages.

    Raises:
        DataError: if there are too few passages for all parts.
    """
    for noun, units in _list_units(documents, passages):
        distinct = list(dict.fromkeys(units))
        if len(distinct) >= FEW or noun == "run of passages":
            break
    needed = 1 + (dev > 0) + (test > 0)
    if len(distinct) < needed:
        raise DataError(
            f"the documents have too few passages for {needed} parts; add documents, or set "
            "dev: 0 or test: 0"
        )
    part_by_unit = _assign_parts(distinct, dev, test, seed)
    return [part_by_unit[unit] for unit in units], noun


def _list_units(
    documents: Sequence[SourceDocument], passages: Sequence[Sequence[TextPassage]]
) -> list[tuple[str, list[str]]]:
    """Return the noun and each passage's unit of every way to divide, the best first."""
    named = [
        (document.name, passage)
        for document, group in zip(documents, passages, strict=True)
        for passage in group
    ]
    return [
        ("document", [name for name, _ in named]),
        ("chapter", [f"{name}\n{(*passage.headings, '')[0]}" for name, passage in named]),
        ("run of passages", [str(place // RUN) for place in range(len(named))]),
    ]


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
