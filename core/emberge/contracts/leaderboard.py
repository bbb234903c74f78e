"""Leaderboards, which take the scores of published models and know what models were trained on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


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
    """Models of a hub that it goes back to."""
    dimension: int | None
    """Numbers of an embedding, None for a model that gives none."""
    reference: str
    """Address of its page."""
    trained_on: Sequence[str] | None = None
    """Tasks that it was trained on, None where not all are known."""
    results: Sequence[Path] = ()
    """Files with its results on single tasks."""


class Leaderboard(ABC):
    """Leaderboard: a register of models and their scores on tasks.

    A frozen dataclass with a docstring; every one that is installed is asked.
    """

    @abstractmethod
    def tasks_trained_on(self, model: str) -> frozenset[str] | None:
        """Return the tasks that a hub's model was trained on, by its name; None where that is unknown.

        The empty set states that it was trained on none.
        """

    @abstractmethod
    def write_entry(self, out: Path, model: Path, entry: BoardEntry) -> list[str]:
        """Write what the leaderboard takes of the model in the folder `model` into `out`; return the files.

        Raises:
            CheckpointError: for facts that the leaderboard would refuse.
            DataError: for results that it would not read back.
        """
