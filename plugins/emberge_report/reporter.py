"""The `html` reporter: pages as HTML, and the cards of models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from emberge import Reporter
from emberge.documents import Card, Page


@dataclass(frozen=True, kw_only=True)
class Html(Reporter):
    """Reporter that writes pages as self-contained HTML files, and cards in the form of the Hugging Face hub.

    Figures are drawn as SVG with their numbers in a table below. A card has only facts that the run stored:
    use, scores, parents, method, data, licences, limits, and the way to make the model again.

    Example:
        emberge diff ./base ./merged --page diff.html
    """

    def draw_page(self, page: Page) -> str:
        from emberge_report.page.page import figure_page

        return figure_page(page)

    def describe_model(self, folder: Path, origin: Path, name: str) -> Card:
        from emberge_report.card.write_card import card_of

        return card_of(folder, origin, name)
