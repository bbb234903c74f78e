"""What is compared of rows, by hand: units, texts of all sets, and labels of which one row is left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from emberge import DatasetInfo, Example
from emberge_data.steps.deduplicate_step import RowsInOrder, list_compared
from emberge_data.steps.outcome import Outcome, drop_lonely
from emberge_data.steps.row_texts import RowTexts
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


def test_rows_of_all_sets_are_numbered_in_order() -> None:
    one, none, two = dataset("one", PAIR, LABELLED), dataset("none"), dataset("two", PAIR)
    rows = RowsInOrder([one, none, two])
    assert (len(rows), rows.starts) == (3, [0, 2, 2, 3])
    assert [rows.place(row) for row in range(3)] == [(one, 0), (one, 1), (two, 0)]
    both = ComparedTexts("", ("b", "a\nc"))
    units = [both, ComparedTexts("\0one", ("t",)), both]
    assert [rows.texts(row) for row in range(3)] == units
    assert rows.find_equal().tolist() == [-1, -1, 0]


def test_texts_of_all_sets_know_their_rows(tmp_path: Path) -> None:
    sets = [
        dataset("one", PAIR, Example("n", ("b",))),
        dataset("two", Example("B", ("x",), ("y",)), draws=True),
        dataset("three", Example("z", ("c",), ("y",))),
    ]
    texts = RowTexts(sets, tmp_path)
    assert list(texts.distinct) == ["b", "c", "a", "n", "m", "z", "y"]
    assert (len(texts), texts.starts) == (4, {"one": 0, "two": 2, "three": 3})
    assert texts.set_of_row.tolist() == [0, 0, 1, 2]
    rows, own = texts.own()
    assert list(zip(rows.tolist(), own.tolist(), strict=True)) == [
        *((0, 0), (0, 1), (0, 2), (1, 3), (1, 0), (2, 0), (3, 5), (3, 1))
    ]
    assert [texts.of_row(row) for row in range(4)] == [
        ([0, 1, 2], [3, 4]),
        ([3, 0], []),
        ([0], []),
        ([5, 1], [6]),
    ]
    assert not list(tmp_path.iterdir())


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
