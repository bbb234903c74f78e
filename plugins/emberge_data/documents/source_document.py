"""Documents as their authors wrote them: a title, and sections with the headings above them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_LONGEST_HEADING = 300  # characters; a longer heading is text that was marked up wrongly


class UnreadableDocumentError(ValueError):
    """The error for a document that cannot be read; the message is the reason."""


@dataclass(frozen=True, slots=True)
class SourceSection:
    """The text between two headings; `headings` are those above it, without the document's title.

    `summary` is a description of the section that is also part of its text, such as the first paragraph of a
    function's docstring.
    """

    headings: tuple[str, ...]
    text: str
    summary: str = ""


@dataclass(frozen=True, slots=True)
class SourceDocument:
    """One document: its name (the path in its folder, or the id of its row), its title and its sections."""

    name: str
    title: str
    sections: tuple[SourceSection, ...]

    @property
    def has_text(self) -> bool:
        """True if any section has text."""
        return any(section.text.strip() for section in self.sections)


@dataclass
class SectionBuilder:
    """A builder of a document from its headings and paragraphs, in reading order.

    The first heading is the title unless a title was given or text precedes a heading below level 1.
    """

    title: str = ""
    _stack: list[tuple[int, str]] = field(default_factory=list)
    _paragraphs: list[str] = field(default_factory=list)
    _sections: list[SourceSection] = field(default_factory=list)

    def add_heading(self, level: int, words: str) -> None:
        """Begin a section; headings of this level and below it no longer apply."""
        words = " ".join(words.split())
        if not words:
            return
        if len(words) > _LONGEST_HEADING:
            self.add_paragraph(words)
            return
        self._close_section()
        while self._stack and self._stack[-1][0] >= level:
            self._stack.pop()
        is_first = not self._sections and not self._stack
        if words == self.title or (not self.title and (is_first or level == 1)):
            self.title = words
        else:
            self._stack.append((level, words))

    def add_paragraph(self, text: str, *, tight: bool = False) -> None:
        """Add a paragraph; a `tight` one, such as an item of a list, stands in the line after the last."""
        text = text.strip("\n").rstrip()
        if not text.strip():
            return
        if tight and self._paragraphs:
            text = f"{self._paragraphs.pop()}\n{text}"
        self._paragraphs.append(text)

    def build(self, name: str, fallback_title: str) -> SourceDocument:
        """Return the document; `fallback_title` is used if it has neither title nor heading."""
        self._close_section()
        return SourceDocument(name, self.title or fallback_title, tuple(self._sections))

    def _close_section(self) -> None:
        if self._paragraphs:
            headings = tuple(words for _, words in self._stack)
            self._sections.append(SourceSection(headings, "\n\n".join(self._paragraphs)))
        self._paragraphs = []


def read_plain_text(name: str, text: str, fallback_title: str) -> SourceDocument:
    """Return a document of text without markup; a short first line before an empty line is its title."""
    paragraphs = [part for part in re.split(r"\n\s*\n", text) if part.strip()]
    builder = SectionBuilder()
    if len(paragraphs) > 1 and _is_title(paragraphs[0]):
        builder.title = " ".join(paragraphs.pop(0).split())
    for paragraph in paragraphs:
        builder.add_paragraph(paragraph)
    return builder.build(name, fallback_title)


def _is_title(paragraph: str) -> bool:
    line = paragraph.strip()
    return "\n" not in line and len(line) <= 100 and not line.endswith((".", "!", "?", ":", ";"))
