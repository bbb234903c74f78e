"""Markdown documents, read as the web pages that they become."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from emberge_data.documents.html_pages import read_html
from emberge_data.documents.source_document import SourceDocument, read_plain_text

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?\n)?(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
LONGEST_PARAGRAPH = 20_000
"""Characters of a paragraph, with whose square the parser's time grows; no paragraph of text is as long."""
# The beginning of a line that ends the paragraph before it.
_NEW_BLOCK = re.compile(r"\s*(?:$|[-*+|#>]|\d{1,9}[.)]|```|~~~)")
_TITLE = re.compile(r"^title:(.*)$", re.MULTILINE | re.IGNORECASE)


def read_markdown(name: str, text: str, fallback_title: str) -> SourceDocument:
    """Return a Markdown document with a section for each heading; a front matter's title is its title.

    A document with a paragraph of more than LONGEST_PARAGRAPH characters is read as plain text.
    """
    title, text = _take_front_matter(text)
    if _measure_paragraphs(text) > LONGEST_PARAGRAPH:
        return read_plain_text(name, text, title or fallback_title)
    return read_html(name, _parser().render(text), fallback_title, title)


def _measure_paragraphs(text: str) -> int:
    """Return the length of the longest run of lines that may be one paragraph."""
    longest = length = 0
    for line in text.split("\n"):
        length = 0 if _NEW_BLOCK.match(line) else length + len(line)
        longest = max(longest, length, len(line))
    return longest


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
