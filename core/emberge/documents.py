"""Documents for people as data: cards of models, drawn here as Markdown, and pages of figures.

Plain text is escaped where a document is drawn. `bold`, `code_span` and `web_link` of `emberge.wording` mark
text up: they return `Markdown`, which is drawn as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from emberge.wording import code_block, prose, table_lines


@dataclass(frozen=True, slots=True)
class CodeLines:
    """Lines of code, shown as they are."""

    text: str
    language: str = ""


@dataclass(frozen=True, slots=True)
class BulletList:
    """List of items without an order."""

    items: Sequence[str]


@dataclass(frozen=True, slots=True)
class TextTable:
    """Table with a header row."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


NAME_REMARK = "  # the path of this folder, or its hub id"
"""Comment after the line of a card's code that loads the model by its step's name."""
Passage: TypeAlias = str | CodeLines | BulletList | TextTable
"""Part of a section; a text is a paragraph."""


@dataclass(frozen=True, slots=True)
class Section:
    """Part of a document with a title."""

    title: str
    passages: Sequence[Passage]


@dataclass(frozen=True, slots=True)
class Card:
    """Card of a model: its title, the opening below the title, sections, and the front matter's values."""

    title: str
    opening: Sequence[Passage] = ()
    sections: Sequence[Section] = ()
    front: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Page:
    """Page of figures, preceded by notes that a reader must not overlook.

    `figures` have the form of those in an artifact's details, as data, without files.
    """

    title: str
    notes: Sequence[str]
    figures: Sequence[Mapping[str, Any]]


def draw_card(card: Card) -> str:
    """Return a card as Markdown below its front matter; a text that is not `Markdown` already is escaped."""
    import yaml

    front = yaml.safe_dump(dict(card.front), sort_keys=False, allow_unicode=True)
    parts = [
        f"# {prose(card.title)}",
        *map(_draw_passage, card.opening),
        *map(_draw_section, card.sections),
    ]
    text = "\n\n".join(filter(None, parts))
    return f"---\n{front}---\n\n{text.strip()}\n"


def _draw_section(section: Section) -> str:
    passages = filter(None, map(_draw_passage, section.passages))
    return "\n\n".join([f"## {prose(section.title)}", *passages])


def _draw_passage(passage: Passage) -> str:
    match passage:
        case TextTable(head, rows):
            lines = table_lines(head, rows)
        case CodeLines(text, language):
            lines = code_block(text, language)
        case BulletList(items):
            lines = [f"- {prose(item)}" for item in items]
        case _:
            lines = [prose(passage)]
    return "\n".join(lines)
