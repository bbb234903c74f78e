"""HTML document around a page's content, and a page of figures alone."""

from __future__ import annotations

from importlib.resources import files

from emberge.documents import Page

from emberge_report.charts.markup import Markup, tag
from emberge_report.page.figure_data import figure_data
from emberge_report.page.figures import figure_of, figure_section
from emberge_report.page.tables import warning


def document(title: str, body: Markup) -> str:
    """Return a page as a whole file, which is well-formed XML too and loads nothing from anywhere."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", _style()),
    )
    return f"<!DOCTYPE html>\n{tag('html', head, tag('body', body), lang='en')}\n"


def _style() -> Markup:
    text = files("emberge_report.page").joinpath("style.css").read_text(encoding="utf-8")
    return Markup(text)


def figure_page(page: Page) -> str:
    """Return a page of figures below its notes.

    Raises:
        DataError: for what is no figure.
    """
    drawn = [figure_of(one) for one in figure_data(page.title, page.figures)]
    body = tag(
        "main",
        tag("header", tag("h1", page.title)),
        tag("div", [warning(note) for note in page.notes]),
        tag("section", figure_section(drawn)),
        tag("footer", "Written by emberge; this page loads nothing from anywhere."),
    )
    return document(page.title, body)
