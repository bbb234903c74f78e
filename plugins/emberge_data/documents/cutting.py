"""Passages of documents: sections cut between paragraphs, then sentences, then words, to a largest size."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from emberge_data.documents.source_document import SourceDocument

# The largest size of a passage: in words, and in characters for text without spaces between words.
MOST_WORDS, MOST_CHARACTERS = 200, 2000
# The end of a sentence: a mark, closing quotes or brackets, then space; or a full-width mark.
_SENTENCE_END = re.compile(
    r"(?<![.!?…])[.!?…]+[\"'”’)\]]*\s+(?=[\"'“‘(\[]*[^\W_a-zß-ÿ])|[。！？]+[”’」』）]*\s*"
)
# Words whose full stop ends no sentence.
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:[^\W\d_]|e\.g|i\.e|z\.B|d\.h|vs|cf|Dr|Mr|Mrs|Ms|Prof|St|Fig|fig|No|Nr|Eq|eq|Abs|Art|etc|p|pp"
    r")\.\s+\Z"
)
_WORD = re.compile(r"\w+(?:['’]\w+)*")


@dataclass(frozen=True, slots=True)
class TextPassage:
    """A passage of a document, with the document's title and the headings above the passage.

    `is_first` is True for the first passage of its section, which begins after the section's heading.
    `section` is the index of that section.
    """

    id: str
    title: str
    headings: tuple[str, ...]
    text: str
    section: int = 0
    is_first: bool = True

    @property
    def context(self) -> str:
        """The title and the headings in one line: `Guide - Set-up - Windows`."""
        return " - ".join(part for part in (self.title, *self.headings) if part)

    @property
    def full_text(self) -> str:
        """The text that a model reads: the context, then the text, as in BEIR."""
        return f"{self.context} {self.text}".strip()


def cut_document(document: SourceDocument) -> list[TextPassage]:
    """Return the document's passages in order; their ids are `name#1`, `name#2` and so on.

    A document that is one passage, and whose name has no `#`, gives the passage its name.
    """
    parts = [
        (number, section, text, not place)
        for number, section in enumerate(document.sections)
        for place, text in enumerate(_cut_text(section.text))
    ]
    is_whole = len(parts) == 1 and "#" not in document.name
    return [
        TextPassage(
            document.name if is_whole else f"{document.name}#{place}",
            document.title,
            section.headings,
            text,
            number,
            first,
        )
        for place, (number, section, text, first) in enumerate(parts, 1)
    ]


def measure_text(text: str) -> float:
    """Return the size of a text as a share of the largest size of a passage."""
    return max(len(text.split()) / MOST_WORDS, len(text) / MOST_CHARACTERS)


def _cut_text(text: str) -> list[str]:
    """Return the parts of a text, of similar length and none above the largest size."""
    whole = measure_text(text)
    if whole <= 1:
        return [text.strip()] if text.strip() else []
    target = whole / math.ceil(whole)
    parts: list[str] = []
    current = ""
    for separator, piece in _split_text(text):
        joined = f"{current}{separator}{piece}" if current else piece
        if current and (measure_text(joined) > 1 or measure_text(current) >= target):
            parts.append(current)
            joined = piece
        current = joined
    return [part.strip() for part in (*parts, current) if part.strip()]


def _split_text(text: str) -> Iterator[tuple[str, str]]:
    """Yield (separator before it, piece): paragraphs, or lines and sentences of those that are too long."""
    for paragraph in re.split(r"\n\s*\n", text):
        if measure_text(paragraph) <= 1:
            yield "\n\n", paragraph
            continue
        lines = paragraph.split("\n")
        for number, line in enumerate(lines):
            before = "\n" if number else "\n\n"
            if measure_text(line) <= 1:
                yield before, line
                continue
            for place, sentence in enumerate(split_sentences(line)):
                yield from _split_sentence(sentence, " " if place else before)


def _split_sentence(sentence: str, before: str) -> Iterator[tuple[str, str]]:
    """Yield a sentence, or, if it is too long, parts of it that end between words where possible."""
    words = sentence.split()
    if measure_text(sentence) <= 1:
        yield before, sentence
        return
    start, length = 0, 0
    for number, word in enumerate(words):
        if number > start and (
            number - start >= MOST_WORDS or length + 1 + len(word) > MOST_CHARACTERS
        ):
            yield before, " ".join(words[start:number])
            start, length, before = number, 0, " "
        length += len(word) + (number > start)
        if len(word) > MOST_CHARACTERS:  # a script without spaces, or no text at all
            for at in range(0, len(word), MOST_CHARACTERS):
                yield before, word[at : at + MOST_CHARACTERS]
                before = ""
            start, length, before = number + 1, 0, " "
    if start < len(words):
        yield before, " ".join(words[start:])


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text, without the white space between them."""
    sentences: list[str] = []
    start = 0
    for end in _SENTENCE_END.finditer(text):
        if _ABBREVIATION.search(text[max(start, end.start() - 8) : end.end()]):
            continue
        sentences.append(text[start : end.end()].strip())
        start = end.end()
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if sentence]


def count_words(texts: Sequence[str]) -> int:
    """Return the number of words of all texts; punctuation is none."""
    return sum(1 for text in texts for _ in _WORD.finditer(text))
