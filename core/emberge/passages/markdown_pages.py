"""Markdown documents, read by their headings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

from emberge.passages.html_pages import strip_tags
from emberge.passages.source_document import SectionBuilder, SourceDocument, read_plain_text

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token


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
    builder = SectionBuilder(title)
    _MarkdownReader(builder).read(_parser().parse(text))
    return builder.build(name, fallback_title)


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


class _MarkdownReader:
    """A reader of a parsed page, token by token."""

    def __init__(self, builder: SectionBuilder) -> None:
        self._builder = builder
        self._heading = 0
        self._lists = 0
        self._row: list[str] | None = None

    def read(self, tokens: Sequence[Token]) -> None:
        """Add all headings, paragraphs and links to the builder."""
        for token in tokens:
            if token.type == "inline":
                self._add_inline(token)
            elif token.type in ("fence", "code_block"):
                self._builder.paragraph(token.content)
            elif token.type == "html_block":
                self._builder.paragraph(strip_tags(token.content))
            else:
                self._follow(token)

    def _follow(self, token: Token) -> None:
        """Note a heading, list or table row that begins or ends."""
        if token.type == "heading_open":
            self._heading = int(token.tag[1:])
        elif token.type == "heading_close":
            self._heading = 0
        elif token.type in ("bullet_list_open", "ordered_list_open"):
            self._lists += 1
        elif token.type in ("bullet_list_close", "ordered_list_close"):
            self._lists -= 1
        elif token.type == "tr_open":
            self._row = []
        elif token.type == "tr_close":
            self._builder.paragraph(" | ".join(self._row or ()), tight=True)
            self._row = None

    def _add_inline(self, token: Token) -> None:
        text = "".join(self._read_inline(token.children or ()))
        if self._heading:
            self._builder.heading(self._heading, text)
        elif self._row is not None:
            self._row.append(" ".join(text.split()))
        elif self._lists:
            self._builder.paragraph(f"{'  ' * (self._lists - 1)}- {text}", tight=True)
        else:
            self._builder.paragraph(text)

    def _read_inline(self, children: Sequence[Token]) -> Iterator[str]:
        """Yield the texts of a paragraph, and add its links."""
        link: tuple[str, list[str]] | None = None
        for child in children:
            text = "" if child.type == "html_inline" else child.content
            if child.type == "link_open":
                link = (str(child.attrs.get("href", "")), [])
            elif child.type == "link_close" and link is not None:
                self._builder.link("".join(link[1]), link[0])
                link = None
            elif child.type in ("softbreak", "hardbreak"):
                text = "\n" if child.type == "hardbreak" else " "
            if link is not None:
                link[1].append(text)
            yield text
