"""Texts are compared without case, punctuation, white space and Unicode's ways of writing."""

from __future__ import annotations

import pytest
from emberge_data.steps.text_similarity import normalise, split_words


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is it?", "what  is\nit"),
        ("Straße", "STRASSE"),
        ("ﬁle № 5", "File No 5"),
        ("don’t", "don't"),
        ("caf\u00e9", "cafe\u0301"),
        ("zero\u200bwidth", "zerowidth"),
        ("Ｆｕｌｌ", "full"),
    ],
)
def test_texts_that_are_written_differently_are_equal(one: str, other: str) -> None:
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(("one", "other"), [("C", "C++"), ("a < b", "a > b"), ("?", "!")])
def test_texts_that_differ_in_content_stay_different(one: str, other: str) -> None:
    assert normalise(one) != normalise(other)


def test_a_character_is_a_word_where_words_have_no_spaces() -> None:
    words = split_words(normalise("日本語 in two words, ไทย"))
    assert words == [*"日本語", "in", "two", "words", *"ไทย"]
