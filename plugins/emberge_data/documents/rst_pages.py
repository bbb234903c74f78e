"""reStructuredText documents, read by their headings; roles and links become their words."""

from __future__ import annotations

import re

from emberge_data.documents.source_document import SectionBuilder, SourceDocument

_LINE = re.compile(r"([!-/:-@\[-`{-~])\1{2,}\s*\Z")  # one mark of punctuation, at least three times
# All lengths are bounded, so that a stranger's text takes no time that grows with the square of its length.
_NAME = r":[\w.+-]{1,40}(?::[\w.+-]{1,40}){0,2}:"
_LINK = re.compile(r"`([^`<]{1,300}?)\s{0,80}<([^`>]{1,2000})>`__?")
_ROLE_WITH_TARGET = re.compile(_NAME + r"`([^`<]{1,300}?)\s{0,80}<([^`>]{1,2000})>`")
_ROLE = re.compile(_NAME + r"`[~!]?([^`]{1,500})`")
_MARKS = re.compile(r"(``|\*\*|\*|`)(?=\S)(.{1,300}?)(?<=\S)\1_{0,2}")
_OPTION = re.compile(r"\s+:[\w-]+:(\s.*)?\Z")
_DIRECTIVE = re.compile(r"\s*\.\. (?:([\w:+-]+)::\s*(.*)|(.*))\Z")
# Directives whose content is a list of files or names, not text.
_LISTS = frozenset(("toctree", "include", "image", "figure", "index", "contents", "module", "raw"))


def read_rst(name: str, text: str, fallback_title: str) -> SourceDocument:
    """Return a reStructuredText document with a section for each heading."""
    builder = SectionBuilder()
    _RstReader(builder, text.expandtabs().splitlines()).read()
    return builder.build(name, fallback_title)


class _RstReader:
    """A reader of a page, line by line."""

    def __init__(self, builder: SectionBuilder, lines: list[str]) -> None:
        self._builder, self._lines = builder, lines
        self._styles: list[str] = []
        self._paragraph: list[str] = []

    def read(self) -> None:
        """Add all headings, paragraphs and links to the builder."""
        at = 0
        while at < len(self._lines):
            length = self._measure_heading(at)
            if length:
                self._end_paragraph()
                self._add_heading(at, length)
                at += length
                continue
            directive = _DIRECTIVE.match(self._lines[at])
            at = self._skip_directive(at, directive) if directive else self._add_line(at)
        self._end_paragraph()

    def _measure_heading(self, at: int) -> int:
        """Return the number of lines of the heading that begins at a line: 3 with an overline, 2, or 0."""
        following = [*self._lines[at : at + 3], "", ""]
        first, second, third = following[:3]
        if _LINE.match(first) and second.strip() and third.rstrip() == first.rstrip():
            return 3
        is_heading = (
            bool(first.strip())
            and not first.startswith(" ")
            and not _LINE.match(first)
            and _LINE.match(second)
            and len(second.rstrip()) >= len(first.rstrip())
        )
        return 2 if is_heading else 0

    def _add_heading(self, at: int, length: int) -> None:
        words = self._lines[at + length - 2].strip()
        style = f"{length}{self._lines[at + length - 1][0]}"
        if style not in self._styles:
            self._styles.append(style)
        self._builder.heading(self._styles.index(style) + 1, _strip_markup(words))

    def _skip_directive(self, at: int, directive: re.Match[str]) -> int:
        """Leave out a directive's name and options, or a whole comment or list; return the next line."""
        self._end_paragraph()
        kind, argument = directive[1], directive[2]
        indentation = len(self._lines[at]) - len(self._lines[at].lstrip())
        at += 1
        if kind is not None and kind not in _LISTS:
            if argument and kind not in ("code-block", "code", "highlight", "currentmodule"):
                self._builder.paragraph(_strip_markup(argument))
            while at < len(self._lines) and _OPTION.match(self._lines[at]):
                at += 1
            return at
        while at < len(self._lines) and (
            not self._lines[at].strip()
            or len(self._lines[at]) - len(self._lines[at].lstrip()) > indentation
        ):
            at += 1
        return at

    def _add_line(self, at: int) -> int:
        line = self._lines[at].rstrip()
        if line.strip() and not _LINE.match(line):
            self._paragraph.append(line.removesuffix("::") + (":" if line.endswith("::") else ""))
        else:
            self._end_paragraph()
        return at + 1

    def _end_paragraph(self) -> None:
        if not self._paragraph:
            return
        text = "\n".join(self._paragraph)
        self._paragraph = []
        self._builder.paragraph(_strip_markup(text))


def _strip_markup(text: str) -> str:
    for pattern in (_LINK, _ROLE_WITH_TARGET, _ROLE):
        text = pattern.sub(r"\1", text)
    return _MARKS.sub(r"\2", text)
