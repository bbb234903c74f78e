"""Contracts for recipes of other tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TranslatedRecipe:
    """A recipe in our YAML, with the line of the user's file that each line comes from.

    `lines[i]` is the user's line for line i + 1 of `text`; both count from 1. Faults can then be reported at
    the lines that the user wrote.
    """

    text: str
    lines: Sequence[int] = ()

    def line(self, number: int) -> int:
        """Return the user's line that a line of the text comes from, or the last known one."""
        if not self.lines:
            return number
        return self.lines[min(max(number, 1), len(self.lines)) - 1]
