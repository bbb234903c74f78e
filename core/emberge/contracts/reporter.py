"""Reporters, which draw pages and make the cards of models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from emberge.documents import Card, Page


class Reporter(ABC):
    """Maker of documents: it draws pages, and makes the cards of models.

    A frozen dataclass with a docstring, found by its kind alone, so that its options have defaults.
    """

    @abstractmethod
    def draw_page(self, page: Page) -> str:
        """Return a page as one self-contained HTML file.

        Raises:
            DataError: for a figure that is none.
        """

    @abstractmethod
    def describe_model(self, folder: Path, origin: Path, name: str) -> Card:
        """Return the card of the model that a step left in `folder`, from the run's results beside it.

        `origin` is the folder that relative paths of the recipe start at, and `name` what the model is opened
        by, such as its id on a hub.
        """
