"""Recipes of other tools, as a plugin turned them into ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TranslatedRecipe:
    """A recipe in our YAML, and which line of the user's own file each of its lines comes from.

    `lines[i]` belongs to line i + 1 of `text`; both count from 1. Faults are then named at the lines that
    the user wrote.
    """

    text: str
    lines: Sequence[int] = ()

    def line(self, number: int) -> int:
        """Return the user's line that a line of the text comes from; the last known one beyond."""
        if not self.lines:
            return number
        return self.lines[min(max(number, 1), len(self.lines)) - 1]
