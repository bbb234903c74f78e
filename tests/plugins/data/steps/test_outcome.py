from __future__ import annotations

from emberge import Example
from emberge_data.steps.outcome import SHOWN, Outcome, SetChanges, changes_table

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
    table = changes_table("Filter", [changes])
    assert "| find | 4 | 2 | 2 | 1 | too far (2); 1 negative (1) |" in table


def test_the_first_rows_are_examples() -> None:
    outcomes = [Outcome(i, PAIR, None, "gone") for i in range(100)]
    rows = [one["row"] for one in watched(outcomes)[0].plain()["examples"]]
    assert rows == [*range(1, SHOWN + 1)]
