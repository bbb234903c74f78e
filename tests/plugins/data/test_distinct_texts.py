"""Distinct texts on disk keep the order of their first occurrence, and leave no file behind."""

from __future__ import annotations

from pathlib import Path

from emberge_data import DistinctTexts


def test_texts_are_in_the_order_of_their_first_and_leave_no_file(tmp_path: Path) -> None:
    given = ["b", "a", "", "b", "\ud800", "a", "ä", "\ud800"]  # half a surrogate pair is a text
    texts = DistinctTexts(iter(given), tmp_path)
    assert list(texts) == list(dict.fromkeys(given))
    assert [texts[int(place)] for place in texts.places] == given
    assert texts[1:3] == ["a", ""]
    assert len(DistinctTexts([], tmp_path)) == 0
    assert not list(tmp_path.iterdir())
