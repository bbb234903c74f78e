"""Reproducible even samples: by the hash of a name and a row number, not by a generator's state."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from hashlib import blake2b


def even_place(*words: object) -> int:
    """Return a hash of a word in [0, 2⁶⁴), evenly distributed and the same on every machine."""
    text = "\x1f".join(str(word) for word in words)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def sample_rows(count: int, limit: int | None, name: str) -> Sequence[int]:
    """Return at most `limit` of `count` row numbers, in order; a larger limit only adds rows."""
    if limit is None or limit >= count:
        return range(count)
    return sorted(heapq.nsmallest(limit, range(count), key=lambda row: even_place(name, row)))


def sample_labelled(labels: Sequence[str], limit: int | None, name: str) -> Sequence[int]:
    """Return at most `limit` row numbers, in order, with several rows for every label that is kept.

    A classifier cannot be fitted on one example per label, so the number of labels is also reduced, to `limit
    / 8` but never below two. The choice depends only on the labels' names, so that the samples of a training
    half and a test half have the same labels.
    """
    if limit is None or limit >= len(labels):
        return range(len(labels))
    by_label: dict[str, list[int]] = {}
    for row, label in enumerate(labels):
        by_label.setdefault(label, []).append(row)
    labels_kept = sorted(by_label, key=lambda label: even_place("label", label))[
        : max(2, limit // 8)
    ]
    turns = [
        (turn, label, row)
        for label in labels_kept
        for turn, row in enumerate(sorted(by_label[label], key=lambda row: even_place(name, row)))
    ]
    return sorted(row for _, _, row in sorted(turns)[:limit])
