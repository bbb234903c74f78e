"""Contracts for reports, and recipes of other tools."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Page:
    """Page of figures, preceded by notes that a reader must not overlook.

    `figures` have the form of those in an artifact's details, as data, without files.
    """

    title: str
    notes: Sequence[str]
    figures: Sequence[Mapping[str, Any]]


class Reporter(ABC):
    """A reporter, which draws pages.

    Write it as a frozen dataclass with a docstring. A recipe does not name it: the installed reporter is used
    with its defaults, so every option needs a default.
    """

    @abstractmethod
    def draw_page(self, page: Page) -> str:
        """Return a page as one self-contained HTML file.

        Raises:
            DataError: if a figure cannot be drawn.
        """


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
