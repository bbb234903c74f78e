"""Contracts for reports, leaderboards, and recipes of other tools."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from emberge.documents import Card, Page


class Reporter(ABC):
    """A reporter, which draws pages and writes model cards.

    Write it as a frozen dataclass with a docstring. A recipe does not name it: the installed reporter is used
    with its defaults, so every option needs a default.
    """

    @abstractmethod
    def draw_page(self, page: Page) -> str:
        """Return a page as one self-contained HTML file.

        Raises:
            DataError: if a figure cannot be drawn.
        """

    @abstractmethod
    def describe_model(self, folder: Path, origin: Path, name: str) -> Card:
        """Return the model card of a step's model in `folder`, from the results of the same run.

        Relative paths of the recipe start at the folder `origin`. `name` is the name by which users load the
        model, such as its id on a hub.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class BoardEntry:
    """Facts of a published model for a leaderboard."""

    name: str
    """Name on the hub, `owner/name`."""
    revision: str | None = None
    """Commit on the hub, None before it is published."""
    date: str
    """Day of publication, YYYY-MM-DD."""
    licence: str
    languages: Sequence[str] = ()
    bases: Sequence[str] = ()
    """Models on a hub that the model descends from."""
    dimension: int | None
    """Size of an embedding; None if the model returns no embeddings."""
    reference: str
    """Address of the model's page."""
    trained_on: Sequence[str] | None = None
    """Tasks that the model was trained on; None if not all are known."""
    results: Sequence[Path] = ()
    """Files with the model's results on single tasks."""


class Leaderboard(ABC):
    """A leaderboard: a register of models and their scores on tasks.

    Write it as a frozen dataclass with a docstring. Every installed leaderboard is asked.
    """

    @abstractmethod
    def tasks_trained_on(self, model: str) -> frozenset[str] | None:
        """Return the tasks that a model of the hub was trained on, by its name; None if unknown.

        The empty set states that the model was trained on no tasks.
        """

    @abstractmethod
    def write_entry(self, out: Path, model: Path, entry: BoardEntry) -> list[str]:
        """Write a leaderboard entry for the model in the folder `model` into `out`; return the files.

        Raises:
            CheckpointError: if the leaderboard would refuse a fact of `entry`.
            DataError: if the leaderboard could not read one of the result files.
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
