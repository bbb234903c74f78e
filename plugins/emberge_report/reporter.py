"""The `html` reporter: pages as HTML, and the cards of models."""

from __future__ import annotations

from dataclasses import dataclass

from emberge import Reporter
from emberge.contracts import Page


@dataclass(frozen=True, kw_only=True)
class Html(Reporter):
    """Reporter that writes pages as self-contained HTML files.

    Heat maps are tables of coloured cells; lines and trees are drawn as SVG, with the extra `report`, above a
    table of their numbers.

    Example:
        emberge diff ./base ./merged --page diff.html
    """

    def draw_page(self, page: Page) -> str:
        from emberge_report.page import figure_page

        return figure_page(page)
