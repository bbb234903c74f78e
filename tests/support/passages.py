"""Passages of a space, for tests of what is chosen among them."""

from __future__ import annotations

from emberge_data import Exclusions, Lists, Passages, Space


def passages(space: Space, positives: list[list[int]]) -> Passages:
    """Passages of a space whose queries never get their positives."""
    lists = Lists.of(positives)
    return Passages(lists, Exclusions(lists), len(space.documents))
