"""Words of messages."""

from __future__ import annotations

import pytest
from emberge.wording import (
    count_noun,
    format_counts_by_first_word,
    format_duration,
    format_size,
    hide_folders,
    join_some,
    make_plural,
    make_printable,
    shorten,
    to_markdown,
)


def test_numbers_and_lists_are_short_and_nouns_follow_their_number() -> None:
    assert [format_size(n) for n in (5, 999, 1500, 999_600, 12_300_000_000, 5e13, 2e15)] == [
        "5 bytes",
        "999 bytes",
        "1.5 kB",
        "1 MB",
        "12.3 GB",
        "50 TB",
        "2,000 TB",
    ]
    assert join_some("abc") == "a, b, c"
    assert join_some("abcde") == "a, b, c and 2 more"
    assert join_some(iter("abc"), 1) == "a and 2 more"
    names = ["visual.blocks.0.weight", "lm_head.weight", "visual.merger.weight"]
    assert format_counts_by_first_word(names) == "visual (2 tensors), lm_head (1 tensor)"
    assert count_noun(1, "merge strategy") == "1 merge strategy"
    assert count_noun(1200, "loss") == "1,200 losses"
    assert [make_plural(noun) for noun in ("merge strategy", "key", "batch", "step")] == [
        "merge strategies",
        "keys",
        "batches",
        "steps",
    ]
    assert (shorten("ab\n de", 5), shorten("abcdef", 5)) == ("ab de", "abcd…")


@pytest.mark.parametrize(
    ("text", "markdown"),
    [("- a - b", r"\- a - b"), ("1. a 2. b", r"1\. a 2. b"), ("", ""), ("a\n  b", "a b")],
)
def test_plain_text_begins_no_list_and_no_rule(text: str, markdown: str) -> None:
    assert to_markdown(text) == markdown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/srv/me/models/A", "A"),
        ("/srv/my models/A", "A"),
        ("/srv/my models/A+~/my models/ad", "A+ad"),
        ("see /srv/me/r.yaml:3; '/srv/x/B' differs", "see r.yaml:3; 'B' differs"),
        ("file:///srv/me/d.jsonl", "d.jsonl"),
        *[(text, text) for text in ("https://hf.co/a/b", "a/b and ./c/d", "</s>", "3 / 4", "$m/3")],
    ],
)
def test_an_absolute_path_is_its_last_name_and_other_text_stays(text: str, shown: str) -> None:
    assert hide_folders(text) == shown
    assert hide_folders({text: [text, 3]}) == {shown: [shown, 3]}


def test_names_that_become_equal_are_kept_apart() -> None:
    assert hide_folders({"/x/m": 1, "/y/m": 2, "k": 3}) == {"m (1)": 1, "m (2)": 2, "k": 3}


def test_text_from_outside_cannot_steer_a_terminal() -> None:
    assert (
        make_printable("a\x1b]0;owned\x07b\nc\r\u202e\ud800")
        == "a\\x1b]0;owned\\x07b\\nc\\r\\u202e\\ud800"
    )
    assert make_printable("é 中 👩\u200d👩") == "é 中 👩\u200d👩"


def test_a_duration_is_shown_in_its_two_largest_units() -> None:
    shown = [format_duration(seconds) for seconds in (0.04, 9.94, 59.96, 200, 7500)]
    assert shown == ["0.0 s", "9.9 s", "1 min 00 s", "3 min 20 s", "2 h 05 min"]
