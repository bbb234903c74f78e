"""Web pages, read by their headings without menus, scripts and styles; and Markdown, which becomes such."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser
from typing import TYPE_CHECKING

from emberge_data.documents.source_document import SectionBuilder, SourceDocument

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?\n)?(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_TITLE_LINE = re.compile(r"^title:(.*)$", re.MULTILINE | re.IGNORECASE)
# Elements whose content is no text of the page.
_SKIPPED_TAGS = frozenset(
    ("script", "style", "nav", "header", "footer", "aside", "template", "noscript", "svg", "form")
)
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_BLOCKS = frozenset(
    (
        *("p", "div", "section", "article", "main", "body", "ul", "ol", "dl", "table", "pre"),
        *("blockquote", "figure", "figcaption", "hr", "details", "summary", "address"),
    )
)
# Elements that are a line each, with the text before that line.
_ITEMS = {"li": "- ", "dt": "- ", "dd": "- ", "tr": ""}


def read_html(name: str, text: str, fallback_title: str, title: str = "") -> SourceDocument:
    """Return a web page with a section for each heading.

    Its title is `title`, by default its first heading of level 1. Without such a heading it is the `<title>`.
    """
    page = _HtmlReader(title)
    page.feed(text.replace("<![", "&lt;!["))  # at a marked section of Word the parser fails
    page.close()
    page.end_block()
    document = page.builder.build(name, "")
    return SourceDocument(
        document.name, document.title or page.title or fallback_title, document.sections
    )


def read_markdown(name: str, text: str, fallback_title: str) -> SourceDocument:
    """Return a Markdown document with a section for each heading; a front matter's title is its title."""
    title, text = _take_front_matter(text)
    return read_html(name, _build_parser().render(text), fallback_title, title)


@cache
def _build_parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable("table")


def _take_front_matter(text: str) -> tuple[str, str]:
    """Return the title in the text's front matter, "" without one, and the text after it."""
    matter = _FRONT_MATTER.match(text)
    if matter is None:
        return "", text
    title = _TITLE_LINE.search(matter[1] or "")
    return (title[1].strip().strip("\"'") if title else ""), text[matter.end() :]


class _HtmlReader(HTMLParser):
    """A parser that gives a page's blocks to a builder."""

    def __init__(self, title: str) -> None:
        super().__init__(convert_charrefs=True)
        self.builder = SectionBuilder(title)
        self._title_pieces: list[str] = []
        self._skipped, self._depth = "", 0
        self._pieces: list[str] = []
        self._heading, self._preformatted = 0, 0
        self._in_title = False
        self._bullet: str | None = None

    @property
    def title(self) -> str:
        """The text of the `<title>`."""
        return " ".join(" ".join(self._title_pieces).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._skipped or tag in _SKIPPED_TAGS:
            self._skipped = self._skipped or tag
            self._depth += tag == self._skipped
            return
        if tag == "title":
            self._in_title = True
        elif tag == "br":
            self._pieces.append("\n" if self._preformatted else " ")
        elif tag in _HEADINGS or tag in _BLOCKS or tag in _ITEMS:
            self.end_block()
            self._heading = _HEADINGS.get(tag, 0)
            self._bullet = _ITEMS.get(tag)
            self._preformatted += tag == "pre"
        elif tag in ("td", "th") and "".join(self._pieces).strip():
            self._pieces.append(" | ")

    def handle_endtag(self, tag: str) -> None:
        if self._skipped:
            self._depth -= tag == self._skipped
            if not self._depth:
                self._skipped = ""
            return
        if tag == "title":
            self._in_title = False
        elif tag in _HEADINGS or tag in _BLOCKS or tag in _ITEMS:
            self.end_block()
            if tag == "pre":
                self._preformatted = max(0, self._preformatted - 1)

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self._title_pieces.append(data)
        elif not self._skipped:
            self._pieces.append(data)

    def end_block(self) -> None:
        """Give the collected text to the builder as a heading or a paragraph."""
        text = "".join(self._pieces)
        self._pieces = []
        if not text.strip():
            return
        if self._heading:
            self.builder.add_heading(self._heading, text)
            self._heading = 0
            return
        if not self._preformatted:
            text = " ".join(text.split())
        self.builder.add_paragraph(f"{self._bullet or ''}{text}", tight=self._bullet is not None)
