"""Outcomes of rows: counted, shown, and the last rows of labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from emberge import DataError, DatasetInfo, Example
from emberge_data.steps.data_step import DataStep
from emberge_data.steps.outcome import (
    SHOWN_ROWS,
    Outcome,
    SetChanges,
    draw_changes,
    drop_rows_without_partners,
)

from tests.support.bench import Bench
from tests.support.training_data import InMemory

PAIR = Example("a", ("b",), ("c",))
LONG = Example("word " * 200, ("b",))


def watched(outcomes: list[Outcome]) -> tuple[SetChanges, list[Example]]:
    changes = SetChanges("find")
    return changes, list(changes.watch(iter(outcomes)))


def test_rows_are_counted_by_what_became_of_them() -> None:
    other = Example("a", ("b",), ("d",))
    changes, kept = watched(
        [
            Outcome(0, PAIR, PAIR),
            Outcome(1, PAIR, None, "too far"),
            Outcome(2, PAIR, other, "1 negative"),
            Outcome(3, LONG, None, "too far"),
        ]
    )
    assert kept == [PAIR, other]
    plain = changes.plain()
    counts = [plain[key] for key in ("rows", "kept", "dropped", "changed")]
    assert counts == [4, 2, 2, 1]
    assert plain["notes"] == {"too far": 2, "1 negative": 1}
    first, second, third = plain["examples"]
    assert first == {
        "row": 2,
        "note": "too far",
        "before": {"anchor": "a", "positives": ["b"], "negatives": ["c"]},
    }
    assert second["after"]["negatives"] == ["d"]
    assert len(third["before"]["anchor"]) == 200
    table = draw_changes("Filter", [changes])
    assert "| find | 4 | 2 | 2 | 1 | too far (2); 1 negative (1) |" in table


def test_the_first_rows_are_examples() -> None:
    outcomes = [Outcome(i, PAIR, None, "gone") for i in range(100)]
    rows = [one["row"] for one in watched(outcomes)[0].plain()["examples"]]
    assert rows == [*range(1, SHOWN_ROWS + 1)]


@dataclass(frozen=True)
class Drawn(InMemory):
    """A set, whose positives and negatives may be drawn."""

    draws_positives: bool = False


def dataset(*rows: Example, draws_positives: bool = False) -> Any:
    return Drawn(DatasetInfo("a", "retrieval", len(rows)), rows, draws_positives=draws_positives)


def test_the_last_row_of_a_label_goes_where_positives_are_drawn() -> None:
    rows = [Example(f"t{n}", label=label) for n, label in enumerate("aabbc")]
    given = [Outcome(n, row, row, "kept") for n, row in enumerate(rows)]
    given[1] = replace(given[1], after=None, note="a copy")
    asked: list[int] = []

    def outcomes() -> Iterator[Outcome]:
        asked.append(1)
        yield from given

    assert list(drop_rows_without_partners(dataset(*rows), outcomes)) == given
    assert len(asked) == 1
    found = list(drop_rows_without_partners(dataset(*rows, draws_positives=True), outcomes))
    alone = "no other row of its label is left"
    assert [one.note for one in found] == [alone, "a copy", "kept", "kept", alone]
    assert [one.after for one in found] == [None, None, rows[2], rows[3], None]
    assert len(asked) == 3


def test_an_error_counts_the_rows_of_all_sets(tmp_path: Path) -> None:
    sets = [(dataset(PAIR), lambda: [Outcome(0, PAIR, None, "odd")])] * 2
    with pytest.raises(DataError, match=r"none of 2 rows is left: odd \(2\);"):
        DataStep(data=()).finish(Bench(tmp_path), sets)
