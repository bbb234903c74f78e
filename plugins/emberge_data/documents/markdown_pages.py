"""Markdown documents, read as the web pages that they become."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from emberge_data.documents.html_pages import read_html
from emberge_data.documents.source_document import SourceDocument

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?\n)?(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_TITLE = re.compile(r"^title:(.*)$", re.MULTILINE | re.IGNORECASE)


def read_markdown(name: str, text: str, fallback_title: str) -> SourceDocument:
    """Return a Markdown document with a section for each heading; a front matter's title is its title."""
    title, text = _take_front_matter(text)
    return read_html(name, _parser().render(text), fallback_title, title)


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable("table")


def _take_front_matter(text: str) -> tuple[str, str]:
    """Return the title in the text's front matter, "" without one, and the text after it."""
    matter = _FRONT_MATTER.match(text)
    if matter is None:
        return "", text
    title = _TITLE.search(matter[1] or "")
    return (title[1].strip().strip("\"'") if title else ""), text[matter.end() :]
