"""What is compared of rows, by hand: units, texts of all sets, and labels of which one row is left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from emberge import DatasetInfo, Example
from emberge_data.steps.deduplicate_step import list_compared
from emberge_data.steps.outcome import Outcome, drop_lonely
from emberge_data.steps.text_similarity import ComparedTexts

from tests.support.training_data import InMemory


@dataclass(frozen=True)
class Drawn(InMemory):
    """A set, whose positives and negatives may be drawn."""

    draws: bool = False


def dataset(name: str, *rows: Example, **options: Any) -> Any:
    return Drawn(DatasetInfo(name, "retrieval", len(rows)), rows, **options)


PAIR = Example("B", ("c", "A"), ("n", "m"))
LABELLED = Example("t", ("u",), ("v",), label="one")


@pytest.mark.parametrize(
    ("example", "options", "unit"),
    [
        (PAIR, {}, ComparedTexts("", ("b", "a\nc"))),
        (PAIR, {"symmetric": True}, ComparedTexts("", ("a\nc", "b"))),
        (PAIR, {"draws": True}, ComparedTexts("\0None", ("b",))),
        (Example("t"), {}, ComparedTexts("\0None", ("t",))),
        (LABELLED, {}, ComparedTexts("\0one", ("t",))),
    ],
)
def test_the_unit_of_a_row_is_what_is_compared(
    example: Example, options: dict[str, Any], unit: ComparedTexts
) -> None:
    assert list_compared(dataset("a", example, **options), example) == unit


def test_the_last_row_of_a_label_goes_where_positives_are_drawn() -> None:
    rows = [Example(f"t{n}", label=label) for n, label in enumerate("aabbc")]
    given = [Outcome(n, row, row, "kept") for n, row in enumerate(rows)]
    given[1] = replace(given[1], after=None, note="a copy")
    asked: list[int] = []

    def outcomes() -> Iterator[Outcome]:
        asked.append(1)
        yield from given

    assert list(drop_lonely(dataset("a", *rows), outcomes)) == given
    assert len(asked) == 1
    found = list(drop_lonely(dataset("a", *rows, draws=True), outcomes))
    alone = "no other row of its label is left"
    assert [one.note for one in found] == [alone, "a copy", "kept", "kept", alone]
    assert [one.after for one in found] == [None, None, rows[2], rows[3], None]
    assert len(asked) == 3
