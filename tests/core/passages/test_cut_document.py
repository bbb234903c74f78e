"""Passages: cut at headings, paragraphs, sentences and words, never above the size, and nothing is lost."""

from __future__ import annotations

import pytest
from emberge.passages import (
    PassageSize,
    SourceDocument,
    SourceSection,
    TextPassage,
    count_words,
    cut_document,
    split_sentences,
)

SIZE = PassageSize(words=10, characters=60)


def cut(*texts: str, name: str = "a.md") -> list[TextPassage]:
    sections = tuple(
        SourceSection((f"Part {number}",), text) for number, text in enumerate(texts, 1)
    )
    return cut_document(SourceDocument(name, "Title", sections), SIZE)


def test_each_section_begins_a_passage_with_its_headings() -> None:
    first, second = cut("One two.", "Three.")
    assert (first.id, first.context, first.text) == ("a.md#1", "Title - Part 1", "One two.")
    assert second.full_text == "Title - Part 2 Three."
    assert (second.section, second.is_first) == (1, True)


def test_a_document_of_one_passage_gives_it_its_name_unless_that_could_be_anothers() -> None:
    assert [passage.id for passage in cut("One.")] == ["a.md"]
    assert [passage.id for passage in cut("One.", name="c#")] == ["c##1"]


def test_long_sections_are_cut_between_sentences_into_like_parts() -> None:
    passages = cut("One two three. " * 4)
    assert [passage.text for passage in passages] == ["One two three. One two three."] * 2
    assert [passage.is_first for passage in passages] == [True, False]


@pytest.mark.parametrize(
    "text",
    [
        "word " * 95,
        "x" * 500,
        "字" * 130 + "。" + "字" * 20,
        "a\n" * 300,
        "short.\n\n" + "w" * 61 + " end " + "v" * 200,
    ],
)
def test_no_passage_is_above_the_size_and_no_character_is_lost(text: str) -> None:
    passages = cut(text)
    assert all(SIZE.share(passage.text) <= 1 for passage in passages)
    assert "".join("".join(passage.text.split()) for passage in passages) == "".join(text.split())


def test_sentences_end_at_marks_but_not_after_abbreviations() -> None:
    assert split_sentences("See e.g. Fig. 3 by J. Doe. It works! 是的。好。") == [
        "See e.g. Fig. 3 by J. Doe.",
        "It works!",
        "是的。",
        "好。",
    ]


def test_words_are_counted_without_punctuation() -> None:
    assert count_words(["It's – well, 2 words?", "yes"]) == 5
