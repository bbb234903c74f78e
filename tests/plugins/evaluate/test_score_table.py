"""The table of scores, which scores.md, pages and cards draw: its rows, and the best number of each."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from emberge_evaluate import ScoredTask, Scores, build_table
from emberge_evaluate.markdown_scores import draw_scores

SETS = (ScoredTask("a", "sts", "m", domain="in"), ScoredTask("b", "sts", "m", domain="in"))
FAR = ScoredTask("c", "retrieval", "m", domain="out")
MEANS = ("in", "out", "task", "type", "kind:sts", "kind:retrieval")


def scores_of(tasks: Sequence[ScoredTask], other: float = 0.6) -> Scores:
    """Scores of two models: 0.5 of the first on every task and mean, `other` of the second."""
    values = {"base": 0.5, "other": other}
    return Scores(
        fingerprints=dict.fromkeys(values, ""),
        tasks=tuple(tasks),
        values={m: dict.fromkeys((t.name for t in tasks), v) for m, v in values.items()},
        means={m: dict.fromkeys(MEANS, v) for m, v in values.items()},
    )


@pytest.mark.parametrize(
    ("tasks", "means"),
    [
        (SETS[:1], ()),
        (SETS, ("mean over tasks",)),
        (
            (*SETS, FAR),
            ("in-domain mean", "mean over tasks", "mean over kinds of task", "mean of sts (2)"),
        ),
    ],
)
def test_a_mean_that_repeats_a_task_or_another_mean_has_no_row(
    tasks: Sequence[ScoredTask], means: Sequence[str]
) -> None:
    scores = scores_of(tasks)
    titles = [row.title for row in build_table(scores).rows]
    assert titles == [*(task.name for task in tasks), *means]
    first_table = draw_scores(scores).partition("\n\n")[0].splitlines()[2:]
    assert [line.split(" |")[0].strip("| *").partition(" (m")[0] for line in first_table] == titles


def test_means_come_before_more_than_six_tasks() -> None:
    tasks = [ScoredTask(f"t{number}", "sts", "m") for number in range(7)]
    assert build_table(scores_of(tasks)).rows[0].title == "mean over tasks"
    assert build_table(scores_of(tasks[1:])).rows[0].title == "t1"


@pytest.mark.parametrize(
    ("metric", "other", "best"),
    [("m", 0.6, "other"), ("loss", 0.6, "base"), ("m", 0.5, None), ("loss", 0.5, None)],
)
def test_the_best_number_is_marked_unless_all_are_equal(
    metric: str, other: float, best: str | None
) -> None:
    (row,) = build_table(scores_of([ScoredTask("a", "sts", metric)], other)).rows
    assert [name for name, cell in row.cells.items() if cell.is_best] == ([best] if best else [])
    text = draw_scores(scores_of([ScoredTask("a", "sts", metric)], other))
    assert text.partition("\n\n")[0].count("**") == (2 if best else 0)
