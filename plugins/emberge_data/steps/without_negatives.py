"""Examples without some of their negatives."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from emberge import Example


def without_negatives(example: Example, numbers: Collection[int]) -> Example:
    """Return the example without the negatives of these numbers, and without their scores."""
    left = [number for number in range(len(example.negatives)) if number not in numbers]
    scores = example.negative_scores
    return replace(
        example,
        negatives=tuple(example.negatives[number] for number in left),
        negative_scores=None if scores is None else tuple(scores[number] for number in left),
    )
