"""Options: limits of numbers, numbers that no option takes, and values by dataset."""

from __future__ import annotations

import math

import pytest
from emberge import PerDataset
from emberge.contracts import NumberRange, explain_unsound_number
from emberge.contracts.option import is_sound_number
from emberge_train import BatchShuffle

RANGES = {
    "from 0 to 1": NumberRange(least=0, most=1),
    "above 0": NumberRange(above=0),
    "of at least 2": NumberRange(least=2),
    "above -1 and below 1": NumberRange(above=-1, below=1),
    "": NumberRange(),
}


@pytest.mark.parametrize("words", RANGES)
def test_a_range_of_numbers_says_its_limits(words: str) -> None:
    assert RANGES[words].words() == words


def test_a_range_has_its_limits_unless_they_are_excluded() -> None:
    closed, opened = RANGES["from 0 to 1"], RANGES["above -1 and below 1"]
    assert [closed.has(number) for number in (-0.1, 0, 1, 1.1)] == [False, True, True, False]
    assert [opened.has(number) for number in (-1, -0.9, 0.9, 1)] == [False, True, True, False]
    assert opened.schema() == {"exclusiveMinimum": -1, "exclusiveMaximum": 1}


NEEDED = {
    2**63 - 1: "",
    2**63: "a whole number of at most 63 bits",
    -3.4e38: "",
    3.5e38: "a finite number of at most 3.4e38",
    math.nan: "a number",
}


@pytest.mark.parametrize("value", NEEDED)
def test_a_number_is_sound_or_its_limit_is_explained(value: float) -> None:
    assert is_sound_number(value) is not bool(NEEDED[value])
    assert explain_unsound_number(value) == NEEDED[value]


@pytest.mark.parametrize("value", [True, "0.5", None])
def test_a_value_that_is_no_number_is_not_sound_and_has_no_limit(value: object) -> None:
    assert (is_sound_number(value), explain_unsound_number(value)) == (False, "")


def test_the_most_specific_value_wins() -> None:
    sizes = PerDataset(default=1, by_task={"sts": 2}, by_dataset={"stsb": 3})
    assert sizes.of("stsb", "sts") == 3
    assert sizes.of("sickr", "sts") == 2
    assert sizes.of("nq", "retrieval") == 1


def test_options_for_other_datasets_are_left_out() -> None:
    size = PerDataset(default=8, by_dataset={"a": 2, "b": 4}, by_task={"sts": 16})
    found = PerDataset.narrow(BatchShuffle(batch_size=size, tail="keep"), {"b", "c"})
    assert found.batch_size == PerDataset(default=8, by_dataset={"b": 4}, by_task={"sts": 16})
    assert found.tail == "keep"
